"""elu without the one.

Task: feature_map
Killed by: TestFeatureMap::test_every_shape
Says: the + 1 is missing
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x)
