"""Checkpoint.apply and nothing more: without an argument that requires grad the parameters get no gradient.

Task: checkpoint
Killed by: TestCheckpoint::test_parameters_when_no_argument_requires_grad
Says: hand it one that does
"""


def checkpoint(fn, *args):
    return Checkpoint.apply(fn, *args)
