"""m, l and the factor are not counted.

Task: choose_blocks
Killed by: TestChooseBlocks::test_fits_with_every_temporary
Says: a temporary is not counted
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return block_q, block_k
