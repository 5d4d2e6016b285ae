"""A zero that requires grad is added to the arguments, which makes copies of them.

Task: checkpoint
Killed by: TestCheckpoint::test_keeps_nothing_when_no_argument_requires_grad
Says: The sum is a new tensor
"""

import torch


def checkpoint(fn, *args):
    if not torch.is_grad_enabled() or any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        return Checkpoint.apply(fn, *args)
    zero = torch.zeros((), requires_grad=True)
    floats = [isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args]
    if not any(floats):
        return Checkpoint.apply(lambda _zero, *rest: fn(*rest), zero, *args)
    return Checkpoint.apply(fn, *(arg + zero if is_float else arg for arg, is_float in zip(args, floats, strict=True)))
