"""The tracker is the dispatch mode itself, and after each operator counts again what lives, by weak references."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryTracker(TorchDispatchMode):
    block = 1

    def __init__(self, device="cpu"):
        super().__init__()
        kind = str(device).split(":")[0]
        if kind not in ("cpu", "meta", "cuda"):
            raise ValueError(f"cannot track {device}")
        self.on_cuda = kind == "cuda"
        if self.on_cuda and torch.cuda.device_count() == 0:
            raise RuntimeError("there is no GPU")
        self.gpu = device
        self.seen = []
        self.highest = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __enter__(self):
        self.seen, self.highest = [], 0
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats(self.gpu)
            self.base = torch.cuda.memory_stats(self.gpu)["allocated_bytes.all.current"]
            return self
        return super().__enter__()

    def __exit__(self, *error):
        if not self.on_cuda:
            super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        old = [
            id(tensor.untyped_storage()) for tensor in torch.utils._pytree.tree_leaves((args, kwargs)) if is_one(tensor)
        ]
        result = func(*args, **(kwargs or {}))
        known = {id(storage) for storage in self.living()}
        for tensor in filter(is_one, torch.utils._pytree.tree_leaves(result)):
            storage = tensor.untyped_storage()
            if id(storage) not in known and id(storage) not in old:
                known.add(id(storage))
                self.seen.append(weakref.ref(storage))
        self.highest = max(self.highest, self.current_allocated())
        return result

    def living(self):
        self.seen = [reference for reference in self.seen if reference() is not None]
        return [reference() for reference in self.seen]

    def reset(self):
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats(self.gpu)
        self.highest = self.current_allocated()

    def current_allocated(self):
        if self.on_cuda:
            return torch.cuda.memory_stats(self.gpu)["allocated_bytes.all.current"] - self.base
        return sum((storage.nbytes() + self.block - 1) // self.block * self.block for storage in self.living())

    def peak_allocated(self):
        if self.on_cuda:
            return torch.cuda.memory_stats(self.gpu)["allocated_bytes.all.peak"] - self.base
        return max(self.highest, self.current_allocated())


def is_one(leaf):
    return isinstance(leaf, torch.Tensor)


def benchmark_attention(d_models, seq_lens, batch_size=8, warmup_steps=5, steps=100, device="cpu"):
    rows = []
    MemoryTracker(device)
    for d_model, seq_len in [(d, n) for d in d_models for n in seq_lens]:
        tracker = MemoryTracker(device)
        tracker.block = 512 if device == "meta" else 1
        row = {"d_model": d_model, "seq_len": seq_len, "batch_size": batch_size}
        row.update(warmup_steps=warmup_steps, steps=steps)
        row.update(device=device, fwd_ms=None, bwd_ms=None, mem_max_MB=None, add_mem_MB=None, status="success")
        try:
            size = (batch_size, seq_len, d_model)
            if device != "meta":
                row["fwd_ms"], row["bwd_ms"] = milliseconds(size, device, warmup_steps, steps)
            row["mem_max_MB"], row["add_mem_MB"] = mebibytes(tracker, size, device)
        except torch.OutOfMemoryError:
            row.update(fwd_ms=None, bwd_ms=None, status="oom")
        except RuntimeError as error:
            texts = ("out of memory", "allocate memory", "not enough memory")
            if not any(text in str(error) for text in texts):
                raise
            row.update(fwd_ms=None, bwd_ms=None, status="oom")
        rows.append(row)
    return rows


def mebibytes(tracker, size, device):
    around = 64 * 2**20 if device == "meta" else 0
    if tracker.on_cuda:
        around = torch.cuda.memory_allocated(device)
    with tracker:
        q = torch.randn(*size, device=device).requires_grad_()
        k = torch.randn(*size, device=device).requires_grad_()
        v = torch.randn(*size, device=device).requires_grad_()
        for _ in range(3):
            tracker.reset()
            start = tracker.current_allocated()
            loss = attention(q, k, v).sum()
            numbers = tracker.peak_allocated() + around, tracker.current_allocated() - start
            loss.backward()
    return [number / 2**20 for number in numbers]


def milliseconds(size, device, warmup_steps, steps):
    q, k, v = (torch.randn(*size, device=device).requires_grad_() for _ in range(3))
    spent = []
    for _ in range(warmup_steps + steps):
        stamps = [time.perf_counter_ns()]
        loss = attention(q, k, v).sum()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        stamps.append(time.perf_counter_ns())
        loss.backward()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        stamps.append(time.perf_counter_ns())
        spent.append(stamps)
    spent = torch.tensor(spent[warmup_steps:], dtype=torch.float64)
    return ((spent[:, 1:] - spent[:, :-1]).median(0).values / 1e6).tolist()
