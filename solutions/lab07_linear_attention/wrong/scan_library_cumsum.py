"""torch.cumsum scans.

Task: causal_linear_attention_scan
Killed by: TestScan::test_steps_grow_with_the_logarithm
Says: is yours to write
"""


def _exclusive_scan(x):
    return x.cumsum(-3) - x
