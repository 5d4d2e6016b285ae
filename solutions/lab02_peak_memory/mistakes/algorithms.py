"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""


def saved_built_in_nodes_only(fn, *args):
    output = fn(*args)
    left_out = storages((args, output, list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []))
    saved, nodes, seen = {}, [getattr(leaf, "grad_fn", None) for leaf in tree_leaves(output)], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                values = [value for value in tree_leaves(getattr(node, name)) if isinstance(value, torch.Tensor)]
                saved |= storages([x for x in values if x.dim() or x.dtype not in (torch.float64, torch.int64)])
    return sum(storage.nbytes() for key, storage in saved.items() if key not in left_out)


def saved_formula_of_attention(fn, *args):
    q = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
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
