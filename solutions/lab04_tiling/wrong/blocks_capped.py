"""block_q is capped at 128, however large SRAM is.

Task: choose_blocks
Killed by: TestChooseBlocks::test_makes_use_of_sram
Says: must grow as SRAM does
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return min(block_q, 128), block_k
