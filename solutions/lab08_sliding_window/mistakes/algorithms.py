"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""


def tiles_from_the_mask(seq_len, window, block):
    _check(seq_len=seq_len, window=window, block=block)
    hidden = window_mask(seq_len, window).numpy()
    starts = range(0, seq_len, block)
    cut = [[hidden[a : a + block, b : b + block] for b in starts] for a in starts]
    return np.array([["empty" if t.all() else "partial" if t.any() else "full" for t in row] for row in cut])


def attention_masked(q, k, v, window, block):
    _check(window=window, block=block)
    precise = _precise(q.dtype)
    scores = q.to(precise) @ k.to(precise).mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(window_mask(q.shape[-2], window), -torch.inf)
    return (scores.softmax(-1) @ v.to(precise)).to(q.dtype)


def audit_computes(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False):
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
    size = dtype.itemsize
    output = batch * heads * seq_len * head_dim * size
    scores = batch * heads * seq_len**2 * size
    mask = {"naive_mask": seq_len**2, "flex_block_mask": 2 * 8 * (seq_len // block) ** 2}.get(variant, 0)
    saved = scores if variant == "naive_mask" else 4 * batch * heads * seq_len
    found = {"mask": mask, "output": output, "saved": 5056 if checkpointed else saved, "gradients": 3 * output}
    found["workspace"] = 2 * scores if variant == "naive_mask" else output
    return found | {"total": sum(found.values()), "mask_building": 3 * mask}
