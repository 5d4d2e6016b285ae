"""Of several results only the first is returned where a wrapper stands around fn.

Task: checkpoint
Killed by: TestCheckpoint::test_several_results_when_no_argument_requires_grad
Says: expected the tuple
"""

import torch


def checkpoint(fn, *args):
    if not torch.is_grad_enabled() or any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        return Checkpoint.apply(fn, *args)
    anchor = torch.empty(0, requires_grad=True)
    results = Checkpoint.apply(lambda _anchor, *rest: fn(*rest), anchor, *args)
    return results[0] if isinstance(results, tuple) else results
