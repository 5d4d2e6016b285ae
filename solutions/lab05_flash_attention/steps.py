"""The tuning of `alternatives/tuned.py` step by step, for `python -m benchmarks.flash`: one head, no checks."""

import math
from dataclasses import dataclass

import torch

LOG2_E = math.log2(math.e)
SAFE_SCORE = 30


@dataclass(frozen=True)
class Steps:
    """Which steps are taken; each presumes those above it."""

    add_in_product: bool = False  # sums grow inside the matrix product (addmm_) and not by an addition after it
    powers_of_2: bool = False  # 2^x instead of e^x, log2 e goes into the scale
    trim: bool = False  # causal tiles on the diagonal are cut where no query sees a key
    bound: bool = False  # no maximum, no L and e^x again, where the lengths of rows show that nothing overflows


def stepped(steps, forward_blocks, backward_blocks):
    """FlashAttention's `apply` for `(N, d)` matrices in float32, tuned as far as `steps` says."""

    class Stepped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, K, V, causal=False):
            O, L = _forward(Q, K, V, causal, steps, *forward_blocks)
            ctx.save_for_backward(Q, K, V, O, L)
            ctx.causal = causal
            return O

        @staticmethod
        def backward(ctx, dO):
            return *_backward(*ctx.saved_tensors, dO, ctx.causal, steps, *backward_blocks), None

    return Stepped.apply


def _forward(Q, K, V, causal, steps, block_q, block_k):
    safe = steps.bound and _is_safe(Q, K)
    power, log, unit = _base(steps, safe)
    O, L = torch.empty(len(Q), V.shape[1]), torch.empty(len(Q))
    buffer = torch.empty(block_q * block_k)
    for start in range(0, len(Q), block_q):
        rows = slice(start, min(start + block_q, len(Q)))
        Q_i = Q[rows] * (Q.shape[1] ** -0.5 * unit)
        m, l = torch.full((len(Q_i), 1), -torch.inf), torch.zeros(len(Q_i), 1)
        O_i = torch.zeros(len(Q_i), V.shape[1])
        end = min(rows.stop, len(K)) if causal else len(K)
        if not steps.trim:
            end = min(-(-end // block_k) * block_k, len(K))
        for at in range(0, end, block_k):
            cols = slice(at, min(at + block_k, end))
            S = _part(buffer, rows, cols)
            torch.mm(Q_i, K[cols].T, out=S)
            if not safe:
                _hide(S, rows, cols, causal, -torch.inf)
                m_new = torch.maximum(m, S.amax(1, keepdim=True))
                shrink = power(m - m_new)
                l *= shrink
                O_i *= shrink
                m = m_new
                S -= m
            power(S, out=S)
            if safe:
                _hide(S, rows, cols, causal, 0)
            l += S.sum(1, keepdim=True)
            _add_product(O_i, S, V[cols], steps)
        O[rows] = O_i / l
        L[rows] = ((log(l) + (0 if safe else m)) / unit)[:, 0]
    return O, L


def _backward(Q, K, V, O, L, dO, causal, steps, block_q, block_k):
    safe = steps.bound and _is_safe(Q, K)
    power, _, unit = _base(steps, safe)
    scale = Q.shape[1] ** -0.5
    dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
    D, L = (dO * O).sum(1, keepdim=True), L[:, None] * unit
    shares = torch.exp(-L) if safe else None
    if safe:
        D *= shares
    buffer, second = torch.empty(block_q * block_k), torch.empty(block_q * block_k)
    for start in range(0, len(K), block_k):
        block = slice(start, min(start + block_k, len(K)))
        K_j = K[block] * (scale * unit)
        low = (start if steps.trim else start // block_q * block_q) if causal else 0
        for at in range(low, len(Q), block_q):
            rows = slice(at, min(at + block_q, len(Q)))
            cols = slice(start, min(block.stop, rows.stop) if causal and steps.trim else block.stop)
            P, dS = _part(buffer, rows, cols), _part(second, rows, cols)
            torch.mm(Q[rows], K_j[: P.shape[1]].T, out=P)
            if not safe:
                P -= L[rows]
                _hide(P, rows, cols, causal, -torch.inf)
            power(P, out=P)
            if safe:
                _hide(P, rows, cols, causal, 0)
            dO_i = dO[rows] * shares[rows] if safe else dO[rows]
            _add_product(dV[cols], P.T, dO_i, steps)
            torch.mm(dO_i, V[cols].T, out=dS)
            dS -= D[rows]
            dS *= P
            _add_product(dQ[rows], dS, K[cols], steps, scale)
            _add_product(dK[cols], dS.T, Q[rows], steps, scale)
    return dQ, dK, dV


def _is_safe(Q, K):
    longest = torch.linalg.vector_norm(Q, dim=1).max() * torch.linalg.vector_norm(K, dim=1).max()
    return Q.shape[1] ** -0.5 * float(longest) < SAFE_SCORE


def _base(steps, safe):
    in_base_2 = steps.powers_of_2 and not safe
    return (torch.exp2, torch.log2, LOG2_E) if in_base_2 else (torch.exp, torch.log, 1.0)


def _part(buffer, rows, cols):
    n_rows, n_cols = rows.stop - rows.start, cols.stop - cols.start
    return buffer[: n_rows * n_cols].view(n_rows, n_cols)


def _add_product(total, left, right, steps, alpha=1.0):
    if steps.add_in_product:
        total.addmm_(left, right, alpha=alpha)
    else:
        total += alpha * (left @ right)


def _hide(S, rows, cols, causal, value):
    if causal and cols.stop > rows.start + 1:
        hidden = torch.arange(cols.start, cols.stop) > torch.arange(rows.start, rows.stop)[:, None]
        S.masked_fill_(hidden, value)
