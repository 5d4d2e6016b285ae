"""Weights as exp(score − log-sum-exp), with no maximum and no sum of their own."""


def _attend(rows, k, v, scale=None, hidden=None):
    precise = torch.float32 if rows.dtype.itemsize == 2 else rows.dtype
    scale = rows.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * (rows.to(precise) @ k.to(precise).mT)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    return weights @ v.to(precise), lse


def split_kv_decode(q, k, v, num_splits):
    if num_splits < 1:
        raise ValueError(f"num_splits={num_splits} is below 1")
    rows = q.unflatten(-2, (-1, _group_size(q.shape[-2], q, k, v)))
    size = max(1, -(-k.shape[-2] // num_splits))
    parts = [_attend(rows, *pair) for pair in zip(k.split(size, -2), v.split(size, -2), strict=True)]
    outputs, each_lse = (torch.stack(part) for part in zip(*parts, strict=True))
    lse = torch.logsumexp(each_lse, 0)
    weights = torch.exp(each_lse - lse.masked_fill(lse.isneginf(), 0))
    return (weights[..., None] * outputs).sum(0).to(q.dtype).flatten(-3, -2), lse.flatten(-2, -1)
