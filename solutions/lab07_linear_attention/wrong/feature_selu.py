"""selu + 1 goes below zero.

Task: feature_map
Killed by: TestFeatureMap::test_is_never_negative
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return F.selu(x) + 1
