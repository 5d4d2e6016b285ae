"""Each block of keys makes a state (m, l, o) of its own; the states of a block of queries are merged at the end."""

import torch


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    precise = _precise(Q.dtype)
    O = torch.zeros(*Q.shape[:-1], V.shape[-1], dtype=Q.dtype, device=Q.device)
    L = torch.full(Q.shape[:-1], -torch.inf, dtype=precise, device=Q.device)
    for rows in _blocks(Q.shape[-2], block_q):
        state = None
        for cols in _blocks(_keys_seen(rows, K.shape[-2], causal), block_k, K.shape[-2]):
            tile = _state(Q[..., rows, :].to(precise), K[..., cols, :], V[..., cols, :], causal, rows, cols)
            state = tile if state is None else _merged(state, tile)
        if state is not None:
            m, l, o = state
            O[..., rows, :] = (o / l).to(Q.dtype)
            L[..., rows] = (m + l.log())[..., 0]
    return O, L


def _state(q, k, v, causal, rows, cols):
    S = (q * q.shape[-1] ** -0.5) @ k.to(q.dtype).mT
    if causal:
        S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
    m = S.amax(-1, keepdim=True)
    P = torch.exp(S - m.masked_fill(m.isneginf(), 0))
    return m, P.sum(-1, keepdim=True), P @ v.to(q.dtype)


def _merged(a, b):
    m = torch.maximum(a[0], b[0])
    factors = [torch.exp(state[0] - m) for state in (a, b)]
    return m, *(factors[0] * x + factors[1] * y for x, y in zip(a[1:], b[1:], strict=True))
