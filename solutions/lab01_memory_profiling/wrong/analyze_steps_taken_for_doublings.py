"""Every step is taken for a doubling.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_lengths_that_triple
Killed by: TestAnalyzeScaling::test_lengths_at_uneven_steps
Says: every step is taken for a doubling
"""


def analyze_scaling(results):
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    lengths = sorted(results)
    memory = [results[n]["attention_matrix_memory"] for n in lengths]
    return {
        "seq_lengths": lengths,
        "attention_memory": memory,
        "total_memory": [results[n]["total_memory"] for n in lengths],
        "scaling_factor": memory[-1] / memory[-2],
    }
