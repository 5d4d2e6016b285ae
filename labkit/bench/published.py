"""The published benchmark's columns of memory, as printed: MiB to six digits, a step of attention with batch 8."""

LENGTHS = (256, 1024, 4096, 8192, 16384)
"""seq_len"""

ADD_MEM = ("4.02344", "64.0938", "1024.38", "4096.75", "16385.5")
"""add_mem_MB, for each of `LENGTHS`; the same whatever d_model is"""

MEM_MAX = {
    16: ("72.7739", "195.094", "2124.38", "8280.75", "32881.5"),
    32: ("73.5239", "198.094", "2136.38", "8304.75", "32929.5"),
    64: ("75.0239", "204.094", "2160.38", "8352.75", "33025.5"),
    128: ("78.0239", "216.094", "2208.38", "8448.75", "33217.5"),
}
"""d_model → mem_max_MB, for each of `LENGTHS`"""
