"""A strip of keys for each block of queries, differentiated by autograd; loops instead of arrays."""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (j > i) | (j <= i - window)


def classify_tiles(seq_len, window, block):
    _check(seq_len=seq_len, window=window, block=block)
    return np.array(_kinds(seq_len, window, block))


def _kinds(seq_len, window, block):
    """The tiles' kinds in lists of lists: an array of words is slow to make."""
    ends = [(first, min(first + block, seq_len) - 1) for first in range(0, seq_len, block)]
    return [_kinds_of_row(first, last, ends, window) for first, last in ends]


def _kinds_of_row(first, last, ends, window):
    """Of a row of tiles; its queries are `first` to `last`, the ends of each tile's keys are in `ends`."""
    oldest_seen, seen_by_all = first - window + 1, last - window + 1
    return [
        "empty" if key > last or to < oldest_seen else "full" if to <= first and key >= seen_by_all else "partial"
        for key, to in ends
    ]


def sliding_window_attention(q, k, v, window, block):
    _check(window=window, block=block)
    if q.shape != k.shape:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in more than the width")
    dtype = q.dtype
    q, k, v = (x.to(_precise(dtype)) for x in (q, k, v))  # once: autograd adds up what comes back in this dtype
    strips = []
    for start in range(0, q.shape[-2], block):
        stop = min(start + block, q.shape[-2])
        first = max(0, start - window + 1)
        keys, values = k[..., first:stop, :], v[..., first:stop, :]
        scores = q[..., start:stop, :] * q.shape[-1] ** -0.5 @ keys.mT
        i, j = torch.arange(start, stop)[:, None], torch.arange(first, stop)
        scores = scores.masked_fill((j > i) | (j <= i - window), -torch.inf)
        strips.append(scores.softmax(-1) @ values)
    return torch.cat(strips, -2).to(dtype)


class BlockMaskCache:
    def __init__(self, maxsize):
        if maxsize < 1:
            raise ValueError(f"maxsize is {maxsize}, below 1")
        self.maxsize, self.entries = maxsize, {}

    def get(self, seq_len, window, block, device="cpu"):
        key = (str(torch.empty(0, device=device).device), seq_len, window, block)
        mask = self.entries.pop(key, None)
        if mask is None:
            mask = self._make(seq_len, window, block, device)
            while len(self.entries) >= self.maxsize:
                del self.entries[next(iter(self.entries))]
        self.entries[key] = mask
        return mask

    @staticmethod
    def _make(seq_len, window, block, device):
        codes = {"empty": 0, "partial": 1, "full": 2}
        _check(seq_len=seq_len, window=window, block=block)
        kinds = _kinds(seq_len, window, block)
        return torch.tensor([[codes[kind] for kind in row] for row in kinds], dtype=torch.int8).to(device)

    def clear(self):
        self.entries = {}

    def __len__(self):
        return len(self.entries)
