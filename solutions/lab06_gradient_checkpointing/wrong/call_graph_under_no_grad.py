"""Grad mode is switched on, whatever the caller has set.

Task: checkpoint
Killed by: TestCheckpoint::test_no_grad
Says: the result requires grad
"""

import torch


def checkpoint(fn, *args):
    with torch.enable_grad():
        anchor = torch.empty(0, requires_grad=True)
        return Checkpoint.apply(lambda _anchor, *rest: fn(*rest), anchor, *args)
