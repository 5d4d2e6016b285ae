"""Bytes are drawn in place of MiB.

Task: plot_memory_scaling
Killed by: TestPlotMemoryScaling::test_points
Says: the values are bytes
"""


def plot_memory_scaling(results, ax=None):
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots()
    lengths = sorted(results)
    for label, key in (("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")):
        ax.plot(lengths, [results[n][key] for n in lengths], "o-", label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlabel("sequence length")
    ax.set_ylabel("memory (MiB)")
    ax.legend()
    return ax
