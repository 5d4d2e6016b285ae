"""The backward pass is given the whole matrix of weights.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_between_the_passes
Says: kept for the backward pass
"""


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, window, block):
        out, lse = _forward(q, k, v, window, block)
        scores = torch.full((*q.shape[:-1], q.shape[-2]), -torch.inf, dtype=lse.dtype)
        for rows, tiles in _row_blocks(q.shape[-2], window, block):
            for cols in tiles:
                q_rows = q[..., rows, :].to(lse.dtype) * q.shape[-1] ** -0.5
                scores[..., rows, cols] = _scores(q_rows, k, rows, cols, window)
        ctx.save_for_backward(q, k, v, out, lse, scores.sub_(lse[..., None]).exp_())
        ctx.window, ctx.block = window, block
        return out

    @staticmethod
    def backward(ctx, d_out):
        *saved, _ = ctx.saved_tensors
        return *_backward(*saved, d_out, ctx.window, ctx.block), None, None
