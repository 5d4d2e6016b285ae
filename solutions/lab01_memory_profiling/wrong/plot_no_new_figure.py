"""Without Axes it draws into whatever figure is open.

Task: plot_memory_scaling
Killed by: TestPlotMemoryScaling::test_makes_axes_when_none_are_given
Says: into a figure that was already there
"""


def plot_memory_scaling(results, ax=None):
    import matplotlib.pyplot as plt

    if ax is None:
        ax = plt.gca()
    lengths = sorted(results)
    for label, key in (("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")):
        ax.plot(lengths, [results[n][key] / 2**20 for n in lengths], "o-", label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlabel("sequence length")
    ax.set_ylabel("memory (MiB)")
    ax.legend()
    return ax
