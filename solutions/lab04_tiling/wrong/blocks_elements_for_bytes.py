"""Bytes are taken for elements.

Task: choose_blocks
Killed by: TestChooseBlocks::test_fits
Says: elements are taken for bytes
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return block_q, block_k
