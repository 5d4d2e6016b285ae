"""`checkpoint` through hooks on saved tensors: the graph is there from the start, and only its tensors come later."""

import weakref

import torch


class _Place:
    """Stands for a tensor that is not kept."""


def checkpoint(fn, *args):
    if not torch.is_grad_enabled():
        return fn(*args)
    rng_state, autocast = _rng_state(args), _autocast_state(args)
    versions = _versions(args)
    places, found = [], weakref.WeakKeyDictionary()

    def pack(_tensor):
        place = _Place()
        places.append(weakref.ref(place))
        return place

    def recompute():
        if torch.is_grad_enabled():
            raise RuntimeError("second derivatives (create_graph) do not go through a checkpoint")
        if _versions(args) != versions:
            raise RuntimeError("an argument of a checkpointed function was changed in place before backward")
        inputs = [arg.detach().requires_grad_(arg.requires_grad) if torch.is_tensor(arg) else arg for arg in args]
        waiting = iter(places)

        def keep(tensor):
            place = next(waiting)()
            if place is not None:
                found[place] = tensor.detach()

        with torch.random.fork_rng(devices=rng_state.keys() - {"cpu"}), torch.enable_grad():
            _set_rng_state(rng_state)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda _: None):
                _run_under(autocast, fn, *inputs)

    def unpack(place):
        if place not in found:
            recompute()
        return found.pop(place)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return fn(*args)


def _versions(args):
    return [arg._version for arg in args if torch.is_tensor(arg)]
