"""fn runs twice in the backward pass: once to look at its results, once for the gradients.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_fn_runs_once_in_each_pass
Says: in both passes together
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.rng_state = fn, torch.get_rng_state()
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
            torch.set_rng_state(ctx.rng_state)
            n_results = len(grads)
            if n_results == 1 and not isinstance(ctx.fn(*args), tuple):
                n_results = 0
            torch.set_rng_state(ctx.rng_state)
            results = ctx.fn(*args) if n_results else (ctx.fn(*args),)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if isinstance(result, torch.Tensor) and result.requires_grad
        ]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return None, *(arg.grad if isinstance(arg, torch.Tensor) else None for arg in args)
