"""The two results are swapped.

Task: choose_blocks
Killed by: TestChooseBlocks::test_serves_your_own_loop
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}")
    return block_k, block_q
