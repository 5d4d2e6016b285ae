"""The second run starts from the seed, as if nothing had been drawn before.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_dropout_draws_the_same_mask_again
Says: taken before fn runs
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.seed = fn, torch.initial_seed()
        ctx.is_tensor = [isinstance(arg, torch.Tensor) for arg in args]
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, torch.Tensor)))
        return fn(*args)

    @staticmethod
    def backward(ctx, *grads):
        saved = iter(ctx.saved_tensors)
        args = [
            next(saved).detach().requires_grad_(needed) if is_tensor else other
            for is_tensor, other, needed in zip(ctx.is_tensor, ctx.others, ctx.needs_input_grad[1:], strict=True)
        ]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(ctx.seed)
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
