"""The left edge of the window is forgotten: everything below the diagonal is full.

Task: classify_tiles
Killed by: TestClassifyTiles::test_kinds
Says: not cut off on the left
"""


def classify_tiles(seq_len: int, window: int, block: int) -> npt.NDArray[np.str_]:
    _check(seq_len=seq_len, window=window, block=block)
    first = np.arange(0, seq_len, block)
    last = np.minimum(first + block, seq_len) - 1
    least = first[:, None] - last[None, :]  # of i − j in the tile; every number up to `most` occurs
    most = last[:, None] - first[None, :]
    empty = most < 0
    full = least >= 0
    return np.select([empty, full], ["empty", "full"], "partial")
