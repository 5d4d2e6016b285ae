"""Only the diagonal is partial: tiles at the left edge of the window are called full.

Task: classify_tiles
Killed by: TestClassifyTiles::test_kinds
"""


def classify_tiles(seq_len: int, window: int, block: int) -> npt.NDArray[np.str_]:
    _check(seq_len=seq_len, window=window, block=block)
    first = np.arange(0, seq_len, block)
    last = np.minimum(first + block, seq_len) - 1
    least = first[:, None] - last[None, :]  # of i − j in the tile; every number up to `most` occurs
    most = last[:, None] - first[None, :]
    empty = (most < 0) | (least >= window)
    full = (least >= 0) & ~empty
    return np.select([empty, full], ["empty", "full"], "partial")
