"""Only the first and the last length are used.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_every_length_counts_in_the_fit
Says: only the first and the last length
"""

import numpy as np


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    slope = np.log(memory[-1] / memory[0]) / np.log(lengths[-1] / lengths[0])
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": float(2**slope),
    }
