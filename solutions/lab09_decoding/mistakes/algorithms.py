"""Mistakes that are another algorithm: what they put in the place of the solution's functions and classes."""

import torch


def grouped_by_broadcasting(q, k, v, causal=False, scale=None):
    n_queries, n_keys, heads = q.shape[-2], k.shape[-2], q.shape[-3]
    group = _group_size(heads, q, k, v)
    rows = q.unflatten(-3, (-1, group))
    hidden = torch.ones(n_queries, n_keys, dtype=torch.bool).triu_(n_keys - n_queries + 1) if causal else None
    o, lse = _attend(rows, k.unsqueeze(-3), v.unsqueeze(-3), scale, hidden)
    return o.flatten(-4, -3).to(q.dtype), lse.flatten(-3, -2)


def grouped_head_by_head(q, k, v, causal=False, scale=None):
    n_queries, n_keys, heads = q.shape[-2], k.shape[-2], q.shape[-3]
    group = _group_size(heads, q, k, v)
    hidden = torch.ones(n_queries, n_keys, dtype=torch.bool).triu_(n_keys - n_queries + 1) if causal else None
    parts = [
        _attend(q[..., h, :, :], k[..., h // group, :, :], v[..., h // group, :, :], scale, hidden)
        for h in range(heads)
    ]
    return torch.stack([o for o, _ in parts], -3).to(q.dtype), torch.stack([lse for _, lse in parts], -2)


class CatCache:
    def __init__(self, max_len, kv_heads, head_dim, dtype):
        _check(max_len=max_len, kv_heads=kv_heads, head_dim=head_dim)
        self.max_len = max_len
        self._keys = torch.empty(kv_heads, 0, head_dim, dtype=dtype)
        self._values = torch.empty_like(self._keys)

    def append(self, k, v):
        _check_tokens(self._keys, k, v)
        if len(self) + k.shape[1] > self.max_len:
            raise ValueError(f"max_len is {self.max_len}")
        self._keys = torch.cat([self._keys, k], dim=1)
        self._values = torch.cat([self._values, v], dim=1)

    @property
    def keys(self):
        return self._keys

    @property
    def values(self):
        return self._values

    def __len__(self):
        return self._keys.shape[1]

    def truncate(self, n):
        if not 0 <= n <= len(self):
            raise ValueError(f"{n} of {len(self)}")
        self._keys, self._values = self._keys[:, :n], self._values[:, :n]


class UnboundedRollingCache:
    def __init__(self, window, kv_heads, head_dim, dtype):
        _check(window=window, kv_heads=kv_heads, head_dim=head_dim)
        self.window = window
        self._keys = torch.empty(kv_heads, 0, head_dim, dtype=dtype)
        self._values = torch.empty_like(self._keys)

    def append(self, k, v):
        _check_tokens(self._keys, k, v)
        self._keys = torch.cat([self._keys, k], dim=1)
        self._values = torch.cat([self._values, v], dim=1)

    @property
    def keys(self):
        return self._keys[:, max(0, self._keys.shape[1] - self.window) :]

    @property
    def values(self):
        return self._values[:, max(0, self._values.shape[1] - self.window) :]

    def __len__(self):
        return min(self._keys.shape[1], self.window)

    def truncate(self, n):
        if not 0 <= n <= self._keys.shape[1] <= self.window:
            raise ValueError(f"{n} of {len(self)}")
        self._keys, self._values = self._keys[:, :n], self._values[:, :n]


def paged_whole_rows(q, k_cache, v_cache, block_table, context_lens):
    group = _group_size(q.shape[-2], q, k_cache.transpose(1, 2), v_cache.transpose(1, 2))
    _check_context(block_table, context_lens, k_cache.shape[1])
    o = q.new_zeros(*q.shape[:-1], v_cache.shape[-1])
    for sequence, length in enumerate(context_lens.tolist()):
        k, v = (cache[block_table[sequence]].flatten(0, 1).transpose(0, 1) for cache in (k_cache, v_cache))
        hidden = (torch.arange(k.shape[1]) >= length)[None]
        part, _ = _attend(q[sequence].unflatten(0, (-1, group)), k, v, None, hidden)
        o[sequence] = part.flatten(0, 1).to(q.dtype)
    return o


def paged_dense(q, k_cache, v_cache, block_table, context_lens):
    group = _group_size(q.shape[-2], q, k_cache.transpose(1, 2), v_cache.transpose(1, 2))
    _check_context(block_table, context_lens, k_cache.shape[1])
    longest = max(context_lens.tolist(), default=0)
    own = block_table[:, : -(-longest // k_cache.shape[1])].clone()
    own[own < 0] = max(int(block_table.max()), 0)
    k, v = (cache[own].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache))
    hidden = torch.arange(k.shape[2]) >= context_lens[:, None]
    k, v = (x.masked_fill(hidden[:, None, :, None], 0) for x in (k, v))
    o, _ = _attend(q.unflatten(1, (-1, group)), k, v, None, hidden[:, None, None])
    return o.flatten(1, 2).to(q.dtype)


def _check_context(block_table, context_lens, block_size):
    if max(context_lens.tolist(), default=0) > block_table.shape[1] * block_size:
        raise ValueError("context_lens do not fit")
