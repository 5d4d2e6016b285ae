"""The states are added in a loop over the chunks.

Task: causal_linear_attention_scan
Killed by: TestScan::test_steps_grow_with_the_logarithm
Says: a loop over the chunks
"""


def _exclusive_scan(x):
    sums = [torch.zeros_like(x[..., 0, :, :])]
    for own in x.unbind(-3)[:-1]:
        sums.append(sums[-1] + own)
    return torch.stack(sums, -3)
