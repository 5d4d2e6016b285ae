"""The bytes of an element are always 4.

Task: choose_blocks
Killed by: TestChooseBlocks::test_fits
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // 4
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return block_q, block_k
