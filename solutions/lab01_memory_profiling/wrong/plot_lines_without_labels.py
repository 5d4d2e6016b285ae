"""The lines carry no labels.

Task: plot_memory_scaling
Killed by: TestPlotMemoryScaling::test_points
Killed by: TestPlotMemoryScaling::test_legend_is_shown
Says: no line has the label
"""


def plot_memory_scaling(results, ax=None):
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots()
    lengths = sorted(results)
    for key in ("attention_matrix_memory", "input_memory"):
        ax.plot(lengths, [results[n][key] / 2**20 for n in lengths], "o-")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlabel("sequence length")
    ax.set_ylabel("memory (MiB)")
    ax.legend(["attention weights", "Q, K, V"])
    return ax
