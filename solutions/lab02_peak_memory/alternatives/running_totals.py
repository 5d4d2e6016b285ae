"""Each block has an account of its own with running totals, whose unit is an argument of the tracker's."""

import torch


class MemoryTracker:
    def __init__(self, device="cpu", unit=1):
        kind = torch.device(device).type
        if kind not in {"cpu", "meta", "cuda"}:
            raise ValueError(f"{device} is not supported")
        if kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("no GPU")
        self.device, self.unit = device, unit
        self.on_cuda = kind == "cuda"
        self.account = self.watch = None

    def __enter__(self):
        self.account = OfTheAllocator(self.device) if self.on_cuda else OfStorages(self.unit)
        if not self.on_cuda:
            self.watch = StorageWatch(self.account.note, self.account.strike)
            self.watch.__enter__()
        return self

    def __exit__(self, *error):
        if self.watch is not None:
            self.watch.__exit__(*error)
            self.watch = None

    def reset(self):
        self.account.reset()

    def current_allocated(self):
        return self.account.total

    def peak_allocated(self):
        return self.account.top


class OfStorages:
    def __init__(self, unit):
        self.unit = unit
        self.sizes = {}
        self.total = self.top = 0

    def note(self, _, before, after):
        for key in after.keys() - before.keys() - self.sizes.keys():
            self.sizes[key] = math.ceil(after[key] / self.unit) * self.unit
            self.total += self.sizes[key]
        self.top = max(self.top, self.total)

    def strike(self, key):
        if key in self.sizes:
            self.total -= self.sizes.pop(key)

    def reset(self):
        self.top = self.total


class OfTheAllocator:
    def __init__(self, device):
        self.device, self.before = device, 0
        self.before = self.total
        self.reset()

    def reset(self):
        torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def total(self):
        return torch.cuda.memory_stats(self.device)["allocated_bytes.all.current"] - self.before

    @property
    def top(self):
        return torch.cuda.memory_stats(self.device)["allocated_bytes.all.peak"] - self.before


def measure_memory(fn, *args, **kwargs):
    found = [leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
    tracker = MemoryTracker(found[0].device if found else "cpu")
    tracker.__enter__()
    try:
        result = fn(*args, **kwargs)
    finally:
        tracker.__exit__(None, None, None)
    return tracker.peak_allocated(), result


def _memory_of_a_step(shape, device):
    is_simulated = device == "meta"
    tracker = MemoryTracker(device, 512 if is_simulated else 1)
    outside = 64 * 2**20 if is_simulated else 0
    if tracker.on_cuda:
        outside = torch.cuda.memory_allocated(device)
    with tracker:
        q, k, v = (torch.rand(shape, device=device, requires_grad=True) for _ in range(3))
        loss = attention(q, k, v).sum()
        loss.backward()
        tracker.reset()
        added = -tracker.current_allocated()
        loss = attention(q, k, v).sum()
        added += tracker.current_allocated()
        top = tracker.peak_allocated() + outside
    return {"mem_max_MB": top / 2**20, "add_mem_MB": added / 2**20}
