"""exp, which overflows.

Task: feature_map
Killed by: TestFeatureMap::test_large_arguments
Says: overflows
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return x.exp()
