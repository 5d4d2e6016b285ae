"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import gc


class TrackerGarbageCollector:
    def __init__(self, round_to=1):
        self.round_to = round_to
        self.there_before = {}
        self.highest = 0

    def __enter__(self):
        self.there_before = self.storages()
        return self

    def __exit__(self, *error):
        pass

    def storages(self):
        tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
        return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}

    @property
    def live_bytes(self):
        new = {key: nbytes for key, nbytes in self.storages().items() if key not in self.there_before}
        self.highest = max(self.highest, sum(new.values()))
        return sum(new.values())

    @property
    def peak_bytes(self):
        return max(self.live_bytes, self.highest)

    def reset(self):
        self.highest = 0


def saved_built_in_nodes_only(fn, *args):
    output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((fn, args, output))}
    saved, nodes, seen = {}, [tensor.grad_fn for tensor in _tensors(output)], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            for value in _tensors(getattr(node, name)) if name.startswith("_saved_") else ():
                if value.dim() or value.dtype not in (torch.float64, torch.int64):
                    saved[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
    return sum(nbytes for key, nbytes in saved.items() if key not in left_out)


def saved_formula_of_attention(fn, *args):
    q = _tensors(args)[0]
    n = q.shape[-2] if q.dim() > 1 else 1
    return 2 * n * n * q.numel() // (n * q.shape[-1]) * q.element_size()


def fit_known_rows_only(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")
    known = {"forward_peak": 14122, "step_peak": 11537, "saved": 20065}[peak]
    return int(known * math.sqrt(capacity_bytes / (24 * 2**30) * 8 / batch))


def fit_not_rounded(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")

    def total(n):
        always = 6 * batch * n * d_model * dtype_bytes + dtype_bytes + WORKSPACE_BYTES
        columns, square, tall = (
            batch * n * (8 + dtype_bytes),
            batch * n * n * dtype_bytes,
            batch * n * d_model * dtype_bytes,
        )
        saved = 2 * square + columns
        forward = always + max(saved + 2 * square, saved + tall + dtype_bytes)
        backward = always + dtype_bytes + max(saved + square + tall, columns + 6 * square, square + 2 * tall)
        return {"saved": saved, "forward_peak": forward, "step_peak": max(forward, backward)}[peak]

    low, high = 0, 1
    while total(high) <= capacity_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) <= capacity_bytes else (low, middle)
    return low


def bench_formula(shape, device):
    predicted = attention_training_memory(*shape)
    return {"mem_max_MB": predicted["forward_peak"] / 2**20, "add_mem_MB": predicted["saved"] / 2**20}
