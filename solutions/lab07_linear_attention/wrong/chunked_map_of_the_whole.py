"""φ is applied to the whole input first.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_one_state_and_one_chunk
Says: take a piece at a time
"""


def causal_linear_attention_chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = q.new_zeros(*q.shape[:-2], q.shape[-1], 1)
    q, k = feature_map(q), feature_map(k)
    pieces = []
    for start in range(0, q.shape[-2], chunk):
        here = slice(start, start + chunk)
        piece, state, k_sum = _one_chunk(q[..., here, :], k[..., here, :], v[..., here, :], state, k_sum, eps)
        pieces.append(piece)
    return torch.cat(pieces, -2)


def _one_chunk(q, k, v, state, k_sum, eps):
    piece = _read(q, k, v, state, k_sum, eps)
    return piece, state + k.mT @ v, k_sum + k.sum(-2)[..., None]
