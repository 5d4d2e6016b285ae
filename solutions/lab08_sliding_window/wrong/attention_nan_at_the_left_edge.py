"""Tiles are taken from the left: a query that sees no key of its first tile becomes NaN.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_output_and_gradients
Says: its maximum is −inf
"""


def _forward(q, k, v, window, block):
    scale, precise = q.shape[-1] ** -0.5, _precise(q.dtype)
    out = q.new_empty(v.shape)
    lse = q.new_empty(q.shape[:-1], dtype=precise)
    for rows, tiles in _row_blocks(q.shape[-2], window, block):
        q_rows = scale * q[..., rows, :].to(precise)
        top = q_rows.new_full((*q_rows.shape[:-1], 1), -torch.inf)
        mass, total = torch.zeros_like(top), q_rows.new_zeros(*q_rows.shape[:-1], v.shape[-1])
        for cols in tiles:
            scores = _scores(q_rows, k, rows, cols, window)
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            powers, shrink = torch.exp(scores - new_top), torch.exp(top - new_top)
            mass = shrink * mass + powers.sum(-1, keepdim=True)
            total = shrink * total + powers @ v[..., cols, :].to(precise)
            top = new_top
        out[..., rows, :] = (total / mass).to(out.dtype)
        lse[..., rows] = (top + mass.log())[..., 0]
    return out, lse
