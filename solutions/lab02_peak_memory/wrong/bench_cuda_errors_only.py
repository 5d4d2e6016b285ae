"""Only CUDA's out-of-memory error is known.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_rows_that_run_out_of_memory
Says: out of memory ends the benchmark
"""


def _is_out_of_memory(error):
    texts = ("can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError)
