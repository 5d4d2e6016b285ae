"""What Lab 04 counts: bytes between HBM and SRAM, tiles, and their growth."""
