"""The total's growth is fitted.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_of_the_weights_not_of_the_total
Says: the total is fitted in place of the weights
"""

import numpy as np


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    slope = np.polyfit(np.log2(lengths), np.log2([results[n]["total_memory"] for n in lengths]), 1)[0]
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": float(2**slope),
    }
