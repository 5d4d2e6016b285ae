"""The state lags by one chunk.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_chunks
Says: lags by one chunk
"""


def causal_linear_attention_chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = q.new_zeros(*q.shape[:-2], q.shape[-1], 1)
    pieces, late = [], None
    for start in range(0, q.shape[-2], chunk):
        here = slice(start, start + chunk)
        late, now = (state, k_sum), late or (state, k_sum)
        piece, _, _ = _one_chunk(q[..., here, :], k[..., here, :], v[..., here, :], *now, eps)
        _, state, k_sum = _one_chunk(q[..., here, :], k[..., here, :], v[..., here, :], state, k_sum, eps)
        pieces.append(piece)
    return torch.cat(pieces, -2)
