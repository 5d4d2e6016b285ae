"""The state is detached at each step.

Task: causal_linear_attention_recurrent
Killed by: TestRecurrent::test_gradients
Says: around the state
"""


def causal_linear_attention_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    state = v.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    k_sum = torch.zeros_like(q[..., 0, :])
    rows = []
    for i in range(q.shape[-2]):
        q_i, k_i, v_i = feature_map(q[..., i, :]), feature_map(k[..., i, :]), v[..., i, :]
        state = state.detach() + k_i[..., :, None] * v_i[..., None, :]
        k_sum = k_sum + k_i
        out = (q_i[..., None, :] @ state)[..., 0, :]
        rows.append(out / ((q_i * k_sum).sum(-1, keepdim=True) + eps))
    return torch.stack(rows, -2)
