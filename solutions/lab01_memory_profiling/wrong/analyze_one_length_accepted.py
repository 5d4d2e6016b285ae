"""A single length is given the factor 4.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_one_length_is_too_few
Says: no ValueError for results of a single length
"""

import numpy as np


def analyze_scaling(results):
    if not results:
        raise ValueError("results is empty")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    slope = np.polyfit(np.log2(lengths), np.log2(memory), 1)[0] if len(lengths) > 1 else 2.0
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": float(2**slope),
    }
