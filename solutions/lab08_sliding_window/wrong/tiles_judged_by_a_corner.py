"""A tile is empty when its first query does not see its first key.

Task: classify_tiles
Killed by: TestClassifyTiles::test_kinds
Killed by: TestClassifyTiles::test_every_small_tiling
"""


def classify_tiles(seq_len: int, window: int, block: int) -> npt.NDArray[np.str_]:
    _check(seq_len=seq_len, window=window, block=block)
    first = np.arange(0, seq_len, block)
    last = np.minimum(first + block, seq_len) - 1
    least = first[:, None] - last[None, :]  # of i − j in the tile; every number up to `most` occurs
    most = last[:, None] - first[None, :]
    corner = first[:, None] - first[None, :]
    empty = (corner < 0) | (corner >= window)
    full = (least >= 0) & (most < window)
    return np.select([empty, full], ["empty", "full"], "partial")
