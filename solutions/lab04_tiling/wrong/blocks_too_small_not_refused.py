"""1 × 1 is returned where nothing fits.

Task: choose_blocks
Killed by: TestChooseBlocks::test_worked_example
Killed by: TestChooseBlocks::test_not_even_one_by_one
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    return max(1, block_q), block_k
