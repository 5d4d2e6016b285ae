"""A chunk below 1 is taken as 1.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_impossible_chunk
Says: no ValueError
"""


def causal_linear_attention_chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    if chunk < 1:
        chunk = 1
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = q.new_zeros(*q.shape[:-2], q.shape[-1], 1)
    pieces = []
    for start in range(0, q.shape[-2], chunk):
        here = slice(start, start + chunk)
        piece, state, k_sum = _one_chunk(q[..., here, :], k[..., here, :], v[..., here, :], state, k_sum, eps)
        pieces.append(piece)
    return torch.cat(pieces, -2)
