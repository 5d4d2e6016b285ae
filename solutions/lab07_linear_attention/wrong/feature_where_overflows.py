"""The exponential of large x is computed and thrown away, its gradient is not.

Task: feature_map
Killed by: TestFeatureMap::test_gradient
Says: clamp what goes into it
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x + 1, x.exp())
