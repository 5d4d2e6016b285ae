"""The backward pass goes by blocks of keys, then by blocks of queries; the audit is one function less."""


def _backward(q, k, v, out, lse, d_out, window, block):
    scale, precise = q.shape[-1] ** -0.5, lse.dtype
    delta = (d_out.to(precise) * out.to(precise)).sum(-1, keepdim=True)
    n, grads = q.shape[-2], [torch.empty_like(x) for x in (q, k, v)]
    for start in range(0, n, block):
        cols = slice(start, min(start + block, n))
        sums = [torch.zeros_like(x[..., cols, :], dtype=precise) for x in (k, v)]
        for at in range(start, min(n, cols.stop - 1 + window), block):
            rows = slice(at, min(at + block, n))
            weights, slopes = _tile(q, k, v, lse, delta, d_out, rows, cols, window)
            sums[0] += scale * (slopes.mT @ q[..., rows, :].to(precise))
            sums[1] += weights.mT @ d_out[..., rows, :].to(precise)
        grads[1][..., cols, :], grads[2][..., cols, :] = sums
    for rows, tiles in _row_blocks(n, window, block):
        total = torch.zeros_like(q[..., rows, :], dtype=precise)
        for cols in tiles:
            _, slopes = _tile(q, k, v, lse, delta, d_out, rows, cols, window)
            total += scale * (slopes @ k[..., cols, :].to(precise))
        grads[0][..., rows, :] = total
    return tuple(grads)


def _tile(q, k, v, lse, delta, d_out, rows, cols, window):
    q_rows = q.shape[-1] ** -0.5 * q[..., rows, :].to(lse.dtype)
    weights = torch.exp(_scores(q_rows, k, rows, cols, window) - lse[..., rows, None])
    d_weights = d_out[..., rows, :].to(lse.dtype) @ v[..., cols, :].to(lse.dtype).mT
    return weights, weights * (d_weights - delta[..., rows, :])


def memory_breakdown(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: there are {', '.join(VARIANTS)}")
    trains = variant != "flex_block_mask"
    inputs = [torch.randn(batch, heads, seq_len, head_dim, dtype=dtype, requires_grad=trains) for _ in range(3)]
    make_mask, attention = _variant(variant, seq_len, window, block)
    mask, outputs = [], []

    def run(*args):
        return attention(*args, mask[0])

    def forward():
        use_checkpoint = checkpointed and trains
        call = torch.utils.checkpoint.checkpoint if use_checkpoint else lambda fn, *args, **_: fn(*args)
        outputs.append(call(run, *inputs, use_reentrant=False))

    def backward():
        if trains:
            outputs[0].sum().backward()

    peaks, lives = zip(*measure_phases(lambda: mask.append(make_mask()), forward, backward), strict=True)
    found = {"mask": lives[0], "output": outputs[0].nbytes}
    found["saved"] = lives[1] - lives[0] - found["output"]
    found["gradients"] = sum(x.grad.nbytes for x in inputs) if trains else 0
    found["workspace"] = max(peaks[1:]) - sum(found.values())
    return found | {"total": max(peaks[1:]), "mask_building": peaks[0]}
