"""The tensors are kept as an attribute of ctx: a change in place goes unnoticed.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_argument_changed_before_backward
Says: ctx.save_for_backward
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.rng_state = fn, torch.get_rng_state()
        ctx.is_tensor = [isinstance(arg, torch.Tensor) for arg in args]
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return fn(*args)

    @staticmethod
    def backward(ctx, *grads):
        saved = iter(ctx.tensors)
        args = [
            next(saved).detach().requires_grad_(needed) if is_tensor else other
            for is_tensor, other, needed in zip(ctx.is_tensor, ctx.others, ctx.needs_input_grad[1:], strict=True)
        ]
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
