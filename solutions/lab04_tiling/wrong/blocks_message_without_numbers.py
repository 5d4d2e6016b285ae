"""The error does not say which SRAM is too small, and for which d.

Task: choose_blocks
Killed by: TestChooseBlocks::test_worked_example
Says: does not mention
"""


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    capacity = sram_bytes // dtype_bytes
    block_k = min(max(1, capacity // (8 * d)), 16)
    block_q = (capacity - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError("SRAM is too small")
    return block_q, block_k
