"""Everything becomes float32.

Task: feature_map
Killed by: TestFeatureMap::test_dtype_stays
Says: expected the dtype of x
"""


def feature_map(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x.float()) + 1
