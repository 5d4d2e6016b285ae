"""relu + 1, which is flat below zero.

Task: feature_map
Killed by: TestFeatureMap::test_worked_example
Says: flat below 0
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x) + 1
