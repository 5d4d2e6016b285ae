"""Padding becomes 1 under φ, at the front of the sequence.

Task: causal_linear_attention_scan
Killed by: TestScan::test_chunks
"""


def _in_chunks(x, chunk):
    missing = -x.shape[-2] % chunk
    x = F.pad(x, (0, 0, missing, 0)) if missing else x
    return x.unflatten(-2, (-1, chunk))
