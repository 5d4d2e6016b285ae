"""The results are taken out of the argument.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_results_are_left_alone
Says: results, the argument, was changed
"""

import numpy as np


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    slope = np.polyfit(np.log2(lengths), np.log2(memory), 1)[0]
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results.pop(n)["total_memory"] for n in lengths],
        "scaling_factor": float(2**slope),
    }
