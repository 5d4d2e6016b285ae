"""dk of a block is what the last block of queries gives it: the others' share is lost.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_output_and_gradients
Killed by: TestSlidingWindowAttention::test_gradcheck
"""


def _backward(q, k, v, out, lse, d_out, window, block):
    scale, precise = q.shape[-1] ** -0.5, lse.dtype
    dq, dk, dv = (torch.zeros_like(x, dtype=precise) for x in (q, k, v))
    for rows, tiles in _row_blocks(q.shape[-2], window, block):
        q_rows, do_rows = scale * q[..., rows, :].to(precise), d_out[..., rows, :].to(precise)
        delta = (do_rows * out[..., rows, :].to(precise)).sum(-1, keepdim=True)
        for cols in tiles:
            weights = torch.exp(_scores(q_rows, k, rows, cols, window) - lse[..., rows, None])
            dv[..., cols, :] += weights.mT @ do_rows
            d_scores = weights * (do_rows @ v[..., cols, :].to(precise).mT - delta)
            dq[..., rows, :] += scale * (d_scores @ k[..., cols, :].to(precise))
            dk[..., cols, :] = d_scores.mT @ q_rows
    return tuple(grad.to(x.dtype) for grad, x in zip((dq, dk, dv), (q, k, v), strict=True))
