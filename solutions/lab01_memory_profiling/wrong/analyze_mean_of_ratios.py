"""The ratios of neighbours are averaged.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_every_length_counts_in_the_fit
Says: the ratios of neighbours are averaged
"""

import numpy as np


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": float(np.mean(np.divide(memory[1:], memory[:-1]))),
    }
