"""Every new storage gets a finalizer of its own, keyed by the storage itself; one class serves the CPU and CUDA."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class MemoryTracker:
    def __init__(self, device="cpu", round_to=1):
        kind = torch.device(device).type
        if kind not in {"cpu", "meta", "cuda"}:
            raise ValueError(f"{device} is not supported")
        if kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("no GPU")
        self.device, self.round_to = device, round_to
        self.total = self.top = 0
        self.spy = None
        self.cuda = kind == "cuda"

    def __enter__(self):
        self.total = self.top = 0
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        else:
            self.spy = Spy(self)
            self.spy.__enter__()
        return self

    def __exit__(self, *error):
        if self.spy is not None:
            self.spy.__exit__(*error)

    def add(self, nbytes, spy):
        if spy is self.spy:  # what an earlier block counted may still be released
            self.total += nbytes
            self.top = max(self.top, self.total)

    def reset(self):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        self.top = self.total

    def current_allocated(self):
        return torch.cuda.memory_allocated(self.device) - self.before if self.cuda else self.total

    def peak_allocated(self):
        return torch.cuda.max_memory_allocated(self.device) - self.before if self.cuda else self.top


class Spy(TorchDispatchMode):
    def __init__(self, tracker):
        super().__init__()
        self.tracker = tracker
        self.known = WeakIdKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        mine = []
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: mine.append(x.untyped_storage()), (args, kwargs))
        out = func(*args, **(kwargs or {}))

        def note(tensor):
            storage = tensor.untyped_storage()
            if storage in self.known or any(storage is other for other in mine):
                return
            nbytes = -(-storage.nbytes() // self.tracker.round_to) * self.tracker.round_to
            self.known[storage] = nbytes
            self.tracker.add(nbytes, self)
            weakref.finalize(storage, self.tracker.add, -nbytes, self).atexit = False

        torch.utils._pytree.tree_map_only(torch.Tensor, note, out)
        return out


def measure_memory(fn, *args, **kwargs):
    found = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, [args, kwargs])
    tracker = MemoryTracker(found[0].device if found else "cpu")
    tracker.__enter__()
    try:
        result = fn(*args, **kwargs)
    finally:
        tracker.__exit__(None, None, None)
    return tracker.peak_allocated(), result
