"""Less than eight queries in a block are refused.

Task: choose_blocks
Killed by: TestChooseBlocks::test_small_srams
Says: are enough for 1 × 1
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 8:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return block_q, block_k
