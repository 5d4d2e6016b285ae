"""The mask is made and cut into tiles: N² bytes to say what T² tiles hold.

Task: classify_tiles
Killed by: TestClassifyTiles::test_without_the_mask
Says: 4 MiB
"""


def classify_tiles(seq_len, window, block):
    _check(seq_len=seq_len, window=window, block=block)
    hidden = window_mask(seq_len, window).numpy()
    starts = range(0, seq_len, block)
    cut = [[hidden[a : a + block, b : b + block] for b in starts] for a in starts]
    return np.array([["empty" if t.all() else "partial" if t.any() else "full" for t in row] for row in cut])
