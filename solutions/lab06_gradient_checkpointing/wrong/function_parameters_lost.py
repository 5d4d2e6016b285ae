"""torch.autograd.grad gives the arguments' gradients; the parameters' are lost.

Task: Checkpoint
Killed by: TestCheckpointFunction::test_parameters_inside
Says: inside fn is None
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
            results = ctx.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if isinstance(result, torch.Tensor) and result.requires_grad
        ]
        wanted = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        found = iter(())
        if pairs and wanted:
            found = iter(torch.autograd.grad([p[0] for p in pairs], wanted, [p[1] for p in pairs], allow_unused=True))
        return None, *(
            next(found, None) if isinstance(arg, torch.Tensor) and arg.requires_grad else None for arg in args
        )
