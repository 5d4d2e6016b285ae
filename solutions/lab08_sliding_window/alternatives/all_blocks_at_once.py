"""No loop over blocks: all blocks of queries meet their strips of keys in one batched product."""


def sliding_window_attention(q, k, v, window, block):
    _check(window=window, block=block)
    if q.shape != k.shape or k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"shapes of q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit")
    n, precise = q.shape[-2], _precise(q.dtype)
    block = min(block, n)
    before = min(window, n) - 1
    after = -n % block
    queries = F.pad(q.to(precise), (0, 0, 0, after)).unflatten(-2, (-1, block))
    keys, values = (
        F.pad(x.to(precise), (0, 0, before, after)).unfold(-2, block + before, block) for x in (k, v)
    )  # (..., T, d, block + before)
    scores = queries * q.shape[-1] ** -0.5 @ keys
    i = torch.arange(len(range(0, n, block)) * block).view(-1, block, 1)
    j = torch.arange(0, n, block)[:, None, None] - before + torch.arange(block + before)
    scores = scores.masked_fill((j > i) | (j <= i - window) | (j < 0), -torch.inf)
    out = scores.softmax(-1) @ values.mT
    return out.flatten(-3, -2)[..., :n, :].to(q.dtype)
