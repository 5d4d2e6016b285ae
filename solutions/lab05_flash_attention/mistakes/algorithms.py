"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import torch


def forward_borrows_heads(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    if not K.shape[-2]:
        return Q.new_zeros(*Q.shape[:-1], V.shape[-1]), Q.new_full(Q.shape[:-1], -torch.inf, dtype=_precise(Q.dtype))
    width = max(Q.shape[-1], V.shape[-1])
    padded = [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (Q, K, V)]
    heads = [x.reshape(1, -1, *x.shape[-2:]) for x in padded]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    O, L = kernel(*heads, is_causal=causal, scale=Q.shape[-1] ** -0.5)
    return O.reshape(*Q.shape[:-1], width)[..., : V.shape[-1]], L.reshape(Q.shape[:-1])


def backward_autograd_through_tiles(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    leaves = [x.detach().clone().requires_grad_() for x in (Q, K, V)]
    with torch.enable_grad():
        q, k, v = (x.to(L.dtype) for x in leaves)
        total = 0
        for rows in _blocks(Q.shape[-2], block_q):
            parts = _blocks(_keys_seen(rows, K.shape[-2], causal), block_k, K.shape[-2])
            tiles = []
            for cols in parts:
                S = Q.shape[-1] ** -0.5 * q[..., rows, :] @ k[..., cols, :].mT
                tiles.append(S.masked_fill(_hidden(rows, cols, S.device), -torch.inf) if causal else S)
            if tiles:
                lse = torch.stack([tile.logsumexp(-1) for tile in tiles]).logsumexp(0)[..., None]
                rows_out = sum(torch.exp(tile - lse) @ v[..., c, :] for tile, c in zip(tiles, parts, strict=True))
                total = total + (rows_out * dO[..., rows, :].to(L.dtype)).sum()
        total = total + sum(x.sum() for x in leaves) * 0
    return torch.autograd.grad(total, leaves)


class ApplyAutogradThroughTiles:
    @staticmethod
    def apply(Q, K, V, is_causal=False):
        precise, rows_out = _precise(Q.dtype), []
        for rows in _blocks(Q.shape[-2], 64):
            q = Q.shape[-1] ** -0.5 * Q[..., rows, :].to(precise)
            m, l, o = q.new_full(q.shape[:-1], -torch.inf), 0.0, 0.0
            for cols in _blocks(_keys_seen(rows, K.shape[-2], is_causal), 64, K.shape[-2]):
                S = q @ K[..., cols, :].to(precise).mT
                if is_causal:
                    S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
                m_new = torch.maximum(m, S.amax(-1)).detach()
                P, alpha = torch.exp(S - m_new[..., None]), torch.exp(m - m_new)
                l, o, m = alpha * l + P.sum(-1), alpha[..., None] * o + P @ V[..., cols, :].to(precise), m_new
            rows_out.append(o / l[..., None])
        return torch.cat(rows_out, -2).to(Q.dtype)


def _short_sums(Q, K, V, is_causal, hidden=-torch.inf, block_q=16, block_k=4):
    rows_out, lse = [], []
    for rows in _blocks(Q.shape[-2], block_q):
        q = Q.shape[-1] ** -0.5 * Q[..., rows, :]
        m, l, o = q.new_full(q.shape[:-1], -torch.inf), 0.0, 0.0
        for cols in _blocks(_keys_seen(rows, K.shape[-2], is_causal), block_k, K.shape[-2]):
            S = q @ K[..., cols, :].mT
            if is_causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), hidden)
            m_new = torch.maximum(m, S.amax(-1))
            P, alpha = torch.exp(S - m_new[..., None]), torch.exp(m - m_new)
            l, o, m = alpha * l + P.sum(-1), alpha[..., None] * o + P @ V[..., cols, :], m_new
        rows_out.append(o / l[..., None])
        lse.append((m + l.log()).to(_precise(Q.dtype)))
    return torch.cat(rows_out, -2), torch.cat(lse, -1)


class ApplyComputesInHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = _short_sums(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None


class ApplyMasksByANumber(ApplyComputesInHalf):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        inputs = [x.to(_precise(Q.dtype)) for x in (Q, K, V)]
        O, L = _short_sums(*inputs, is_causal, -1e6, 64, 64)
        O = O.to(Q.dtype)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O


class ApplyIsTheBuiltIn:
    @staticmethod
    def apply(Q, K, V, is_causal=False):
        heads = (x.reshape(1, -1, *x.shape[-2:]) for x in (Q, K, V))
        O = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=is_causal)
        return O.reshape(*Q.shape[:-1], V.shape[-1])


def _all_scores(Q, K, is_causal):
    S = Q.shape[-1] ** -0.5 * Q.to(_precise(Q.dtype)) @ K.to(_precise(Q.dtype)).mT
    if is_causal:
        S = S.masked_fill(_hidden(slice(0, S.shape[-2]), slice(0, S.shape[-1]), S.device), -torch.inf)
    return S


def forward_whole_matrix(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    S = _all_scores(Q, K, causal)
    L = S.logsumexp(-1)
    P = torch.exp(S - L[..., None])
    return (P @ V.to(S.dtype)).to(Q.dtype), L


def backward_whole_matrix(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    P = torch.exp(_all_scores(Q, K, causal) - L[..., None])
    q, k, v, o, do = (x.to(L.dtype) for x in (Q, K, V, O, dO))
    dS = Q.shape[-1] ** -0.5 * P * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    return (dS @ k).to(Q.dtype), (dS.mT @ q).to(K.dtype), (P.mT @ do).to(V.dtype)


class ApplyNaiveInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = forward_whole_matrix(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        return *backward_whole_matrix(*ctx.saved_tensors, dO, ctx.is_causal), None
