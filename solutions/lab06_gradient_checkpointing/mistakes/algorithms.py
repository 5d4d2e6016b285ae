"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import torch
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.checkpoint import checkpoint as theirs


class FunctionIsTorchs(CheckpointFunction):
    @staticmethod
    def forward(ctx, fn, *args):
        return CheckpointFunction.forward(ctx, fn, True, *args)

    @staticmethod
    def backward(ctx, *grads):
        with torch.enable_grad():
            found = CheckpointFunction.backward(ctx, *grads)
        return None, *found[2:]


def call_hooks_without_state(fn, *args):
    if not torch.is_grad_enabled():
        return fn(*args)
    found = {}
    versions = [arg._version for arg in args if isinstance(arg, torch.Tensor)]

    def again():
        if versions != [arg._version for arg in args if isinstance(arg, torch.Tensor)]:
            raise RuntimeError("an argument was changed in place")
        inputs = [
            arg.detach().requires_grad_(arg.requires_grad) if isinstance(arg, torch.Tensor) else arg for arg in args
        ]

        def keep(tensor):
            found[len(found)] = tensor.detach()

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda _: None):
            fn(*inputs)

    places = iter(range(2**30))

    def unpack(place):
        if place not in found:
            found.clear()
            again()
        return found.pop(place)

    with torch.autograd.graph.saved_tensors_hooks(lambda _: next(places), unpack):
        return fn(*args)


def call_is_torchs(fn, *args):
    return theirs(fn, *args, use_reentrant=False)
