"""elu in place changes the caller's tensor.

Task: feature_map
Killed by: TestFeatureMap::test_argument_stays
Says: x, an argument, was changed
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x, inplace=True) + 1
