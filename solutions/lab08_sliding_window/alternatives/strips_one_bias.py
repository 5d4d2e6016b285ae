"""A strip of keys for each block of queries, and one bias for all of them, added by the product: the fastest here."""


def sliding_window_attention(q, k, v, window, block):
    _check(window=window, block=block)
    if q.shape != k.shape:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in more than the width")
    seq_len, d_head = q.shape[-2:]
    queries, keys, values = (x.reshape(-1, *x.shape[-2:]).to(_precise(x.dtype)) for x in (q, k, v))
    row, col = torch.arange(block)[:, None], torch.arange(block + window - 1)
    # column c of a block's strip is the key that lies c - (window - 1) after the block's first query
    bias = torch.zeros(block, block + window - 1, dtype=queries.dtype)
    bias.masked_fill_((col < row) | (col > row + window - 1), -torch.inf)
    strips = []
    for start in range(0, seq_len, block):
        stop = min(start + block, seq_len)
        first = max(0, start - window + 1)
        seen = bias[: stop - start, first - start + window - 1 : stop - start + window - 1]
        scores = torch.baddbmm(seen, queries[:, start:stop], keys[:, first:stop].mT, alpha=d_head**-0.5)
        strips.append(scores.softmax(-1) @ values[:, first:stop])
    return torch.cat(strips, 1).reshape(*q.shape[:-1], v.shape[-1]).to(q.dtype)
