"""States are scanned for every position.

Task: causal_linear_attention_scan
Killed by: TestScan::test_states_of_chunks_only
Says: a state for each position
"""


def causal_linear_attention_scan(q, k, v, chunk=64, eps=1e-6):
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    q, k = feature_map(q), feature_map(k)
    own, keys = k[..., :, None] * v[..., None, :], k[..., :, None]
    states, sums = _exclusive_scan(own) + own, _exclusive_scan(keys) + keys
    return ((q[..., None, :] @ states) / (q[..., None, :] @ sums + eps))[..., 0, :]
