"""The arguments are detached before they are handed on.

Task: checkpoint
Killed by: TestCheckpoint::test_result_and_gradient
"""

import torch


def checkpoint(fn, *args):
    args = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
    if not torch.is_grad_enabled():
        return fn(*args)
    anchor = torch.empty(0, requires_grad=True)
    return Checkpoint.apply(lambda _anchor, *rest: fn(*rest), anchor, *args)
