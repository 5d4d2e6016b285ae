"""What runs next to the submission: weights counted as they are computed, and what a plot draws."""

import collections
import contextlib
import functools
import math

import numpy as np
import profiling
from profiling import analyze_scaling, measure_attention_memory, plot_memory_scaling, profile_memory_scaling

from labkit.meters.arrays import measure_arrays
from labkit.testing.probes import probe

TASKS = {"measure": measure_attention_memory, "profile": profile_memory_scaling}
POWERS = (np.exp, np.exp2, np.expm1, np.power, np.float_power)


@probe
def arrays_of_call(task, *args):
    """The most bytes that a call of a task allocates at one moment, the bytes that stay, and the result."""
    return measure_arrays(getattr(profiling, task), *args)


@probe
def result_and_weights(task, *args):
    """What a task returns, and {N_k: how many attention weights were computed in rows of that length}.

    Counted are calls of `standard_attention`, and powers that NumPy takes: an attention of another name is seen by its
    softmax. Both are looked for in NumPy and in the module of the tasks.
    """
    called, powers = collections.Counter(), collections.Counter()

    def counted_call(function, Q, K, *args, **kwargs):
        called[K.shape[-2]] += math.prod(Q.shape[:-1]) * K.shape[-2]
        return function(Q, K, *args, **kwargs)

    def counted_power(function, *args, **kwargs):
        shape = np.broadcast_shapes(*(np.shape(x) for x in args[:2]))
        powers[shape[-1] if shape else 1] += math.prod(shape)
        return function(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        modules = [vars(np), *(getattr(each, "__globals__", {}) for each in TASKS.values())]  # a stand-in has none
        for module in {id(each): each for each in modules}.values():
            for name, value in list(module.items()):
                counted = counted_call if name == "standard_attention" else counted_power
                if name == "standard_attention" or any(value is power for power in POWERS):
                    module[name] = functools.partial(counted, value)
                    stack.callback(module.__setitem__, name, value)
        result = TASKS[task](*args)
    return result, {n: max(called[n], powers[n]) for n in {*called, *powers}}


@probe
def measured_in_turn(sizes):
    """Measure each of `sizes`: what the calls returned, read after the last one, and how many different objects."""
    results = [measure_attention_memory(*each) for each in sizes]
    return results, len({id(result) for result in results})


@probe
def profile_of_a_generator(lengths):
    """The profile of lengths that can be iterated over once."""
    return profile_memory_scaling(n for n in lengths)


@probe
def results_once_analyzed(results):
    """What `results` hold after a call that reads them."""
    analyze_scaling(results)
    return results


@probe
def plotted(results, given=True, others_current=False):
    """Call `plot_memory_scaling(results, ax=…)`, or without `ax`: what is then in the Axes drawn in.

    With `others_current`, pyplot's current Axes are of a figure made later than the Axes given; what is in them is
    returned as `others`.
    """
    try:
        plot_memory_scaling({}, ax=object())
    except NotImplementedError:
        raise  # a stub, before matplotlib is imported: that takes longer than all the other tests together
    except Exception:
        pass
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
            "others": None if others is None else contents(others),
            **contents(result if is_axes and not given else there),
        }
    finally:
        plt.close("all")


def contents(axes):
    """Lines, scales, labels and legend of Axes, as plain data."""
    both = {"x": axes.xaxis, "y": axes.yaxis}
    legend = axes.get_legend()
    return {
        "lines": {line.get_label(): [np.asarray(values) for values in line.get_data()] for line in axes.get_lines()},
        "scales": {name: axis.get_scale() for name, axis in both.items()},
        "bases": {name: getattr(axis.get_transform(), "base", None) for name, axis in both.items()},
        "labels": {name: axis.get_label_text() for name, axis in both.items()},
        "legend": None if legend is None else [text.get_text() for text in legend.get_texts()],
    }
