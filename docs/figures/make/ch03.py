"""Chapter 03's figures: rescaling along a row, and the error of three forms of softmax over the size of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from labkit.testing.attention.reference import random_qkv
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, Recipe

HEAD_DIM = 64
N_BLOCKS, BLOCK = 32, 16
N_SCORES = 1024
SIZES = [2.0**k for k in range(-2, 15)]
LEAST = 2.0**-6


def rescaling_data() -> dict[str, Any]:
    """The state after each block of one row of attention, with the sum as it would be without rescaling."""
    Q, K, _ = random_qkv(np.random.default_rng(5), n_queries=1, n_keys=N_BLOCKS * BLOCK, d=HEAD_DIM, logit_scale=1.5)
    scores = K.astype(np.float64) @ Q[0].astype(np.float64) / math.sqrt(HEAD_DIM)
    m, l, l_kept, rows = -math.inf, 0.0, 0.0, []
    for block in scores.reshape(N_BLOCKS, BLOCK):
        m_new = max(m, float(block.max()))
        factor = math.exp(m - m_new)
        added = float(np.exp(block - m_new).sum())
        l, l_kept, m = l * factor + added, l_kept + added, m_new
        rows.append({"block_max": float(block.max()), "m": m, "factor": factor, "l": l, "l_not_rescaled": l_kept})
    return {"N": N_BLOCKS * BLOCK, "d": HEAD_DIM, "block": BLOCK, "after_block": rows}


def draw_rescaling(data: dict[str, Any]) -> Figure:
    """Draw the running maximum above the running sum, over the blocks seen."""
    rows = data["after_block"]
    seen = np.arange(1, len(rows) + 1)
    column = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    moved = column["factor"] < 1
    figure, (above, below) = plt.subplots(2, 1, figsize=(5.0, 5.6), sharex=True, height_ratios=(2, 3))
    above.plot(seen, column["block_max"], ".", color=MUTED, linestyle="none", label="of the block")
    above.step(seen, column["m"], color=BLUE, where="post", linestyle="-", label="m, so far")
    above.plot(seen[moved], column["m"][moved], "o", color=BLUE, linestyle="none", label="it moved")
    above.set(ylabel="maximum score", ylim=(-0.4, None))
    above.legend(loc="lower right", ncols=3, handletextpad=0.4, columnspacing=1.0)
    above.set_title(f"one row of {data['N']} scores in blocks of {data['block']}")
    below.step(seen, column["l_not_rescaled"], color=ORANGE, where="post", linestyle="--", label="l, never rescaled")
    below.step(seen, column["l"], color=BLUE, where="post", linestyle="-", label="l")
    below.plot(seen[moved], column["l"][moved], "o", color=BLUE, linestyle="none")
    for n, j in enumerate(np.flatnonzero(moved)[1:]):
        below.annotate(
            f"× {column['factor'][j]:.2f}",
            (seen[j], column["l"][j]),
            xytext=(2, -13 - 12 * (n % 2)),
            textcoords="offset points",
            ha="left",
            size=9,
            color=INK,
        )
    below.set(xlabel="blocks seen", ylabel="sum of exp(s − m)", ylim=(0, None), xlim=(0.2, len(rows) + 0.8))
    below.legend(loc="upper left")
    return figure


def errors_data() -> dict[str, Any]:
    """Largest error of the weights over the size of the logits, for three forms in two precisions.

    Relative to the largest weight, in units of eps, rounded to a power of two; 2⁻⁶ stands for anything less, null for
    NaN. `exp` is taken in float64 and rounded, sums run from left to right, so that every machine gets the same.
    """
    x = np.random.default_rng(5).standard_normal(N_SCORES)
    x /= np.abs(x).max()
    forms = {"naive": _naive, "safe": _safe, "online": _online}
    return {
        "N": N_SCORES,
        "block": BLOCK,
        "largest_logit": SIZES,
        "error_in_eps": {
            precision: {
                name: [_error(form, size * x, np.dtype(precision)) for size in SIZES] for name, form in forms.items()
            }
            for precision in ("float16", "float32")
        },
    }


def draw_errors(data: dict[str, Any]) -> Figure:
    """Draw one panel for each precision, one line for each form, and the size where NaN begins."""
    figure, panels = plt.subplots(2, 1, figsize=(5.0, 5.6), sharex=True, sharey=True)
    sizes = np.array(data["largest_logit"])
    marks = {"naive": ("s", ORANGE, "--", 8), "safe": ("^", GREEN, "-.", 7), "online": ("o", BLUE, "-", 4)}
    limits = {"float16": math.log(65504), "float32": math.log(float(np.finfo(np.float32).max))}
    for ax, (precision, forms) in zip(panels, data["error_in_eps"].items(), strict=True):
        for name, (marker, colour, dash, size) in marks.items():
            values = np.array([np.nan if value is None else value for value in forms[name]])
            ax.plot(sizes, values, marker=marker, color=colour, linestyle=dash, markersize=size, label=name)
        ax.axvline(limits[precision], color=MUTED, linestyle=":", linewidth=1.2)
        ax.text(
            1.15 * limits[precision], 2.0**6.4, f"exp overflows\nabove {limits[precision]:.1f}", color=MUTED, size=9
        )
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_title(precision)
        ax.set_ylabel("largest error ÷ eps")
    panels[1].legend(loc="upper right")
    ticks = sizes[::3]
    panels[0].set_ylim(2.0**-7, 2.0**10)
    panels[1].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panels[1].set_xlabel("largest logit of the row, in magnitude")
    for ax in panels:
        ax.minorticks_off()
    return figure


def _error(form: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dtype: np.dtype) -> float | None:
    given = x.astype(dtype)
    exact = np.exp(given.astype(np.float64) - given.astype(np.float64).max())
    exact /= exact.sum()
    with np.errstate(all="ignore"):
        weights = form(given).astype(np.float64)
    if np.isnan(weights).any():
        return None
    largest = float((np.abs(weights - exact) / exact.max()).max()) / float(np.finfo(dtype).eps)
    return 2.0 ** round(math.log2(max(largest, LEAST)))


def _naive(x: np.ndarray) -> np.ndarray:
    powers = _exp(x)
    return powers / _sum(powers)


def _safe(x: np.ndarray) -> np.ndarray:
    powers = _exp(x - x.max())
    return powers / _sum(powers)


def _online(x: np.ndarray) -> np.ndarray:
    m, l = x.dtype.type(-np.inf), x.dtype.type(0)
    for block in x.reshape(-1, BLOCK):
        m_new = max(m, block.max())
        l = l * _exp(m - m_new) + _sum(_exp(block - m_new))
        m = m_new
    return _exp(x - m) / l


def _exp(x: Any) -> Any:
    return np.exp(np.float64(x)).astype(x.dtype)


def _sum(x: np.ndarray) -> Any:
    return np.add.accumulate(x)[-1]


FIGURES = {
    "03_rescaling": Recipe(rescaling_data, draw_rescaling),
    "03_softmax_errors": Recipe(errors_data, draw_errors),
}
