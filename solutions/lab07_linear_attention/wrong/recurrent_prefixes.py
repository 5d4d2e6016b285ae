"""Each step goes back to all the keys before it.

Task: causal_linear_attention_recurrent
Killed by: TestRecurrent::test_work_of_a_step_stays
Says: goes back to the keys
"""


def causal_linear_attention_recurrent(q, k, v, eps=1e-6):
    rows = [
        linear_attention(q[..., i : i + 1, :], k[..., : i + 1, :], v[..., : i + 1, :], eps) for i in range(q.shape[-2])
    ]
    return torch.cat(rows, -2)
