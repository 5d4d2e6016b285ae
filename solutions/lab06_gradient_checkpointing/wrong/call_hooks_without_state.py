"""Saved tensors are recomputed through hooks, without the random state.

Task: checkpoint
Killed by: TestCheckpoint::test_dropout_draws_the_same_mask_again
"""

import torch


def checkpoint(fn, *args):
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
