"""The axes are logarithmic to base 10.

Task: plot_memory_scaling
Killed by: TestPlotMemoryScaling::test_both_axes_are_logarithmic_to_base_2
Says: without base=2
"""


def plot_memory_scaling(results, ax=None):
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots()
    lengths = sorted(results)
    for label, key in (("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")):
        ax.plot(lengths, [results[n][key] / 2**20 for n in lengths], "o-", label=label)
    ax.loglog()
    ax.set_xlabel("sequence length")
    ax.set_ylabel("memory (MiB)")
    ax.legend()
    return ax
