"""The lengths are sorted and the bytes are not.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_lists_are_sorted_by_length
Says: in the order given, seq_lengths is sorted
"""

import numpy as np


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [stats["attention_matrix_memory"] for stats in results.values()]
    slope = np.polyfit(np.log2(lengths), np.log2(memory), 1)[0]
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [stats["total_memory"] for stats in results.values()],
        "scaling_factor": float(2**slope),
    }
