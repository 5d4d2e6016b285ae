"""Every tile in which a pair is seen is called full.

Task: classify_tiles
Killed by: TestClassifyTiles::test_kinds
Says: every partial tile is called full
"""


def classify_tiles(seq_len: int, window: int, block: int) -> npt.NDArray[np.str_]:
    _check(seq_len=seq_len, window=window, block=block)
    first = np.arange(0, seq_len, block)
    last = np.minimum(first + block, seq_len) - 1
    least = first[:, None] - last[None, :]  # of i − j in the tile; every number up to `most` occurs
    most = last[:, None] - first[None, :]
    empty = (most < 0) | (least >= window)
    full = ~empty
    return np.select([empty, full], ["empty", "full"], "partial")
