"""Tuned for a CPU: buffers made once, sums inside products, no maximum where nothing can overflow."""

import math

import torch

LOG2_E = math.log2(math.e)
SAFE_SCORE = 30  # e^±30 is far from the ends of float32's range, and so is e^(−30 − L) for any N
FORWARD_BLOCKS, BACKWARD_BLOCKS = (512, 256), (512, 256)


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    precise = _precise(Q.dtype)
    O = Q.new_empty(*Q.shape[:-1], V.shape[-1])
    L = Q.new_empty(Q.shape[:-1], dtype=precise)
    for O_h, L_h, *inputs in _heads(O, L, Q, K, V):
        _forward_head(O_h, L_h, *(x.to(precise) for x in inputs), causal, block_q, block_k)
    return O, L


def flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    gradients = [torch.zeros(x.shape, dtype=L.dtype, device=x.device) for x in (Q, K, V)]
    for *sums, L_h, Q_h, K_h, V_h, O_h, dO_h in _heads(*gradients, L, Q, K, V, O, dO):
        _backward_head(*sums, *(x.to(L.dtype) for x in (L_h, Q_h, K_h, V_h, O_h, dO_h)), causal, block_q, block_k)
    return tuple(gradient.to(Q.dtype) for gradient in gradients)


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(Q, K, V, is_causal, *FORWARD_BLOCKS)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        if torch.is_grad_enabled():  # in a backward pass it is so under create_graph=True alone
            raise RuntimeError("FlashAttention has no second derivatives: to autograd L is a constant")
        return *flash_backward(*ctx.saved_tensors, dO, ctx.is_causal, *BACKWARD_BLOCKS), None


def _heads(*tensors):
    """The matrices of every batch entry, one entry after the other; of a vector for each entry, those."""
    batch = tensors[0].shape[:-2]
    n_heads = math.prod(batch)
    return zip(*(x.reshape(n_heads, *x.shape[len(batch) :]).unbind() for x in tensors), strict=True)


def _forward_head(O, L, Q, K, V, causal, block_q, block_k):
    (N_q, d), N_k = Q.shape, len(K)
    if not N_k:
        O.zero_()
        L.fill_(-torch.inf)
        return
    safe = _is_safe(Q, K)
    scale, log = (d**-0.5, torch.log) if safe else (d**-0.5 * LOG2_E, torch.log2)
    scores = Q.new_empty(min(block_q, N_q) * min(block_k, N_k))
    for rows in _blocks(N_q, block_q):
        n_rows = rows.stop - rows.start
        Q_i = Q[rows] * scale
        m, l, O_i = Q.new_zeros(n_rows, 1), Q.new_zeros(n_rows, 1), Q.new_zeros(n_rows, V.shape[1])
        for cols in _blocks(min(rows.stop, N_k) if causal else N_k, block_k):
            S = scores[: n_rows * (cols.stop - cols.start)].view(n_rows, -1)
            if safe:
                torch.mm(Q_i, K[cols].T, out=S).exp_()
                _hide(S, rows, cols, causal, 0)
            else:
                torch.addmm(m, Q_i, K[cols].T, beta=-1, out=S)
                _hide(S, rows, cols, causal, -torch.inf)
                _follow_maximum(S, m, l, O_i, first=cols.start == 0)
                S.exp2_()
            l += S.sum(1, keepdim=True)
            O_i.addmm_(S, V[cols])
        O[rows] = O_i.div_(l)
        L[rows] = log(l).add_(m)[:, 0] * (d**-0.5 / scale)


def _follow_maximum(S, m, l, O_i, first):
    """Move to the new maxima where a score has outgrown the old one by more than 2⁸: 2⁸ does no harm."""
    growth = S.amax(1, keepdim=True)
    if first:
        m.copy_(growth)
    elif growth.max() <= 8:
        return
    else:
        growth.clamp_(min=0)
        m += growth
        shrink = torch.exp2(-growth)
        l *= shrink
        O_i *= shrink
    S -= growth


def _backward_head(dQ, dK, dV, L, Q, K, V, O, dO, causal, block_q, block_k):
    (N_q, d), N_k = Q.shape, len(K)
    scale, safe = d**-0.5, N_k and _is_safe(Q, K)
    D, L_2, to_power = (dO * O).sum(1, keepdim=True), L[:, None] * LOG2_E, scale * LOG2_E
    if safe:  # P is e^S e^−L: the second factor is one a row, so that it may go to dO and D instead of every tile
        to_power, shares = scale, torch.exp(-L)[:, None]
        D *= shares
    size = min(block_q, N_q) * min(block_k, N_k)
    scores, slopes = Q.new_empty(size), Q.new_empty(size)
    for cols in _blocks(N_k, block_k):
        K_j = K[cols] * to_power
        for rows in _blocks(N_q, block_q, first=cols.start if causal else 0):
            seen = slice(cols.start, min(cols.stop, rows.stop) if causal else cols.stop)
            n_rows, n_cols = rows.stop - rows.start, seen.stop - seen.start
            P, dS = (buffer[: n_rows * n_cols].view(n_rows, n_cols) for buffer in (scores, slopes))
            torch.mm(Q[rows], K_j[:n_cols].T, out=P)
            dO_i = dO[rows] * shares[rows] if safe else dO[rows]
            if safe:
                P.exp_()
                _hide(P, rows, seen, causal, 0)
            else:
                P -= L_2[rows]
                _hide(P, rows, seen, causal, -torch.inf)
                P.exp2_()
            dV[seen].addmm_(P.T, dO_i)
            torch.mm(dO_i, V[seen].T, out=dS)
            dS -= D[rows]
            dS *= P
            dQ[rows].addmm_(dS, K[seen], alpha=scale)
            dK[seen].addmm_(dS.T, Q[rows], alpha=scale)


def _is_safe(Q, K):
    """Whether |q · k| ≤ |q| |k| already shows that no power overflows or underflows.

    Then no maximum has to be found, and e^x is as fast as 2^x. Where e^x underflows it can be 100 times slower.
    """
    longest = [torch.linalg.vector_norm(x, dim=1).max() if len(x) else x.new_zeros(()) for x in (Q, K)]
    return Q.shape[1] ** -0.5 * float(longest[0] * longest[1]) < SAFE_SCORE


def _hide(S, rows, cols, causal, value):
    """Put `value` where key j comes after query i: on the diagonal there is a triangle, the rest is left alone."""
    first = max(rows.start + 1, cols.start)
    if causal and cols.stop > first:
        corner = S[: cols.stop - 1 - rows.start, first - cols.start :]
        hidden = torch.ones(corner.shape, dtype=torch.bool, device=S.device).triu_(rows.start - first + 1)
        corner.masked_fill_(hidden, value)


def _blocks(length, block, first=0):
    return [slice(start, min(start + block, length)) for start in range(first, length, block)]
