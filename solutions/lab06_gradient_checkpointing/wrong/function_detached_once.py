"""The arguments are detached in the forward pass, so that .grad grows from one backward to the next.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_backward_twice
Says: added to it
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.rng_state = fn, torch.get_rng_state()
        ctx.is_tensor = [isinstance(arg, torch.Tensor) for arg in args]
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, torch.Tensor)))
        ctx.args = [
            arg.detach().requires_grad_(arg.requires_grad) if isinstance(arg, torch.Tensor) else arg for arg in args
        ]
        return fn(*args)

    @staticmethod
    def backward(ctx, *grads):
        ctx.saved_tensors  # noqa: B018
        args = ctx.args
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            results = ctx.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if isinstance(result, torch.Tensor) and result.requires_grad
        ]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return None, *(arg.grad if isinstance(arg, torch.Tensor) else None for arg in args)
