"""The factor is not fitted but known.

Task: analyze_scaling
Killed by: TestAnalyzeScaling::test_linear_and_cubic_growth
Says: the square is assumed
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
        "scaling_factor": 4.0,
    }
