"""Lab 01's steps: what the suite asks about the answer's own objects, asked where they are and told as plain data."""

from profiling import analyze_scaling, measure_attention_memory, plot_memory_scaling


def measured_in_turn(sizes):
    """Measure each of `sizes`; what the calls returned, seen after the last one, and how many different objects."""
    results = [measure_attention_memory(*each) for each in sizes]
    return results, len({id(result) for result in results})


def results_once_analyzed(results):
    """What `results` hold after a call that reads them."""
    analyze_scaling(results)
    return results


def drawn(results, given=True, others_current=False):
    """Draw `results`: into Axes `given`, or with Axes there that are not given. What then stands in the Axes drawn in.

    Where the result is no Axes, it is handed back, and told is what stands in the Axes that were there.
    With `others_current`, pyplot's current Axes are of a further figure, made later than the Axes given.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.axes
    import matplotlib.pyplot as plt

    plt.close("all")
    try:
        there = plt.subplots()[1]
        others = plt.figure().add_subplot() if others_current else None
        n_figures = len(plt.get_fignums())
        result = plot_memory_scaling(results, ax=there) if given else plot_memory_scaling(results)
        is_axes = isinstance(result, matplotlib.axes.Axes)
        return {
            "is_axes": is_axes,
            "result": None if is_axes else result,
            "is_there_before": result is there,
            "n_new_figures": len(plt.get_fignums()) - n_figures,
            "n_lines_of_others": 0 if others is None else len(others.get_lines()),
            "results": results,
            **_told(result if is_axes and not given else there),
        }
    finally:
        plt.close("all")


def _told(axes):
    import numpy as np

    legend = axes.get_legend()
    return {
        "lines": [(line.get_label(), *map(np.asarray, line.get_data())) for line in axes.get_lines()],
        "scales": {"x": axes.xaxis.get_scale(), "y": axes.yaxis.get_scale()},
        "bases": {
            "x": getattr(axes.xaxis.get_transform(), "base", None),
            "y": getattr(axes.yaxis.get_transform(), "base", None),
        },
        "labels": {"x": axes.get_xlabel(), "y": axes.get_ylabel()},
        "legend": None if legend is None else [text.get_text() for text in legend.get_texts()],
    }
