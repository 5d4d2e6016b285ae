"""PyTorch's own checkpoint.

Task: checkpoint
Killed by: TestCheckpoint::test_is_not_borrowed
Says: with your own Function
"""

from torch.utils.checkpoint import checkpoint as theirs


def checkpoint(fn, *args):
    return theirs(fn, *args, use_reentrant=False)
