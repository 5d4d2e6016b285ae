"""Chapter 12's figures: bytes of a token, what a latent vector costs, bits by channel, sinks, error against bytes.

Lab 12's solution is run, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.meters.moved import MovedBytes
from labkit.meters.tensors import measure_peak
from labkit.testing.layer_sample import layer_sample
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

HEADS, WIDTHS = 16, {"d_n": 32, "d_r": 16, "d_c": 64, "d_v": 32}
LENGTHS = [2**power for power in range(9, 15)]
MARKS = {"grouped": (ORANGE, "s"), "window": (GREEN, "^"), "latent": (PINK, "D"), "quantized": (BLUE, "o")}
SCHEMES: list[dict[str, Any]] = [
    {"kind": "full"},
    *({"kind": "grouped", "group": group} for group in (2, 4)),
    *({"kind": "window", "window": window, "num_sinks": sinks} for window in (16, 64, 128) for sinks in (0, 4)),
    *({"kind": "latent", "rank": rank} for rank in (8, 16, 32, 64)),
    *({"kind": "quantized", "bits": bits, "group": group} for bits in (2, 4, 8) for group in (16, 32)),
]
BESIDE = {"2": (-6, 4, "right"), "4": (-6, -11, "right"), "2/32": (-6, -3, "right")}
"""Where the label of a point is that would lie on another's: to the right, upwards, and its side."""

WINDOWS = [8, 16, 32, 64, 96, 128, 160, 192]


def latent_data() -> dict[str, Any]:
    """Peaks over the inputs and bytes read of the cache: absorbed, by the solution, and with keys and values made."""
    lab, generator = solution_module("12"), _generator()
    rows = []
    for n_tokens in LENGTHS:
        given = _latent_inputs(generator, n_tokens)
        rows.append(
            {"tokens": n_tokens, "cache": given[2].nbytes + given[3].nbytes}
            | {"absorbed": _measured(lab.mla_decode, given), "made": _measured(_keys_and_values_made, given)}
        )
    return {"heads": HEADS, **WIDTHS, "dtype": "float32", "rows": rows}


def _latent_inputs(generator: Any, n_tokens: int) -> list[Any]:
    d_n, d_r, d_c, d_v = WIDTHS.values()
    shapes = (HEADS, d_n), (HEADS, d_r), (n_tokens, d_c), (n_tokens, d_r), (HEADS, d_n, d_c), (HEADS, d_v, d_c)
    return [torch.randn(shape, generator=generator) / 4 for shape in shapes]


def _measured(function: Any, given: list[Any]) -> dict[str, int]:
    peak = measure_peak(function, *given).peak_bytes
    with MovedBytes(c_kv=given[2], k_rope=given[3]) as moved:
        function(*given)
    return {"peak": peak, "read": sum(moved.read.values())}


def _keys_and_values_made(q_nope: Any, q_rope: Any, c_kv: Any, k_rope: Any, W_UK: Any, W_UV: Any) -> Any:
    """The same output with the keys and values of every head written out."""
    keys, values = c_kv @ W_UK.mT, c_kv @ W_UV.mT
    scores = (keys @ q_nope[..., None])[..., 0] + q_rope @ k_rope.mT
    weights = (scores * (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5).softmax(-1)
    return (weights[:, None] @ values)[:, 0]


def draw_latent(data: dict[str, Any]) -> Figure:
    """Draw both peaks and the cache over the number of tokens, logarithmic."""
    figure, ax = plt.subplots(figsize=(5.0, 4.4))
    tokens = [row["tokens"] for row in data["rows"]]
    lines = {
        "keys and values of all heads made": ([row["made"]["peak"] for row in data["rows"]], ORANGE, "s", "--"),
        "the cache itself": ([row["cache"] for row in data["rows"]], MUTED, "", ":"),
        "absorbed, a block at a time": ([row["absorbed"]["peak"] for row in data["rows"]], BLUE, "o", "-"),
    }
    for label, (heights, colour, mark, dash) in lines.items():
        ax.plot(tokens, [each / 2**20 for each in heights], dash, marker=mark, color=colour, label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(tokens, [f"{n:,}" for n in tokens])
    ax.set_yticks([2**-3, 2**-1, 2, 8, 32, 128], ["1/8", "1/2", "2", "8", "32", "128"])
    ax.minorticks_off()
    ax.set(xlabel="tokens in the cache", ylabel="peak over the inputs, MiB")
    ax.legend(loc="upper left")
    return figure


def bits_data() -> dict[str, Any]:
    """Relative errors of K and V, quantized by channel and by token, groups of 32, on the sample of a layer."""
    lab, (_, k, v) = solution_module("12"), layer_sample()
    found: dict[str, Any] = {}
    for name, x in (("K", k), ("V", v)):
        for bits in (2, 4, 8):
            ways = lab.dequantize_kv(lab.quantize_kv(x, x, bits, 32))
            for way, got in zip(("by channel", "by token"), ways, strict=True):
                found.setdefault(f"{name} {way}", {})[str(bits)] = float((got - x).norm() / x.norm())
    return {"group": 32, "tokens": k.shape[1], "d": k.shape[2], "errors": found}


def draw_bits(data: dict[str, Any]) -> Figure:
    """Draw the four lines over the number of bits, the error logarithmic."""
    figure, ax = plt.subplots(figsize=(5.0, 4.2))
    looks = {
        "K by token": (ORANGE, "s", "--"),
        "K by channel": (BLUE, "o", "-"),
        "V by token": (GREEN, "^", "-."),
        "V by channel": (PINK, "D", ":"),
    }
    for name, (colour, mark, dash) in looks.items():
        errors = data["errors"][name]
        ax.plot([int(bits) for bits in errors], errors.values(), dash, marker=mark, color=colour, label=name)
    ax.set_yscale("log")
    ax.set_xticks([2, 4, 8], ["2", "4", "8"])
    ax.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    ax.minorticks_off()
    ax.set(xlabel="bits of a code", ylabel="error of K or V, relative", xlim=(1.6, 8.4))
    ax.legend(loc="lower left")
    return figure


def sinks_data() -> dict[str, Any]:
    """Errors of attention's output over the window, with 0, 1 and 4 sinks; and the weight on the first token."""
    lab, (q, k, v) = solution_module("12"), layer_sample()
    lines = {}
    for sinks in (0, 1, 4):
        schemes = [{"kind": "window", "window": window, "num_sinks": sinks} for window in WINDOWS]
        lines[str(sinks)] = [_tried(lab, scheme, (q, k, v))["error"] for scheme in schemes]
    first = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)[..., 0].mean().item()
    return {"tokens": k.shape[1], "windows": WINDOWS, "weight_on_token_0": round(first, 3), "errors": lines}


def draw_sinks(data: dict[str, Any]) -> Figure:
    """Draw the error over the window, without a sink and with one; those with four are marks on the second line."""
    figure, ax = plt.subplots(figsize=(5.0, 4.2))
    windows, errors = data["windows"], data["errors"]
    ax.plot(windows, errors["0"], "--", marker="s", color=ORANGE)
    ax.plot(windows, errors["1"], "-", marker="o", color=BLUE)
    ax.plot(windows, errors["4"], "o", color=BLUE, markersize=11, markerfacecolor="none", linestyle="none")
    ax.annotate("no sink", (windows[4], errors["0"][4]), xytext=(0, 10), textcoords="offset points", color=ORANGE)
    words = "1 sink: filled\n4 sinks: rings, the same"
    ax.annotate(
        words, (windows[5], errors["1"][5]), xytext=(-10, -4), textcoords="offset points", color=BLUE, ha="right"
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
    ax.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    ax.minorticks_off()
    ax.set(xlabel=f"window, of {data['tokens']} tokens", ylabel="error of attention's output, relative")
    return figure


def budget_data() -> dict[str, Any]:
    """Bytes a token and layer and the error of each scheme, and what is chosen for each budget."""
    lab, given = solution_module("12"), layer_sample()
    n_tokens = given[1].shape[1]
    tried = [_tried(lab, scheme, given) for scheme in SCHEMES]
    points = [each | {"bytes_a_token": each["bytes"] / n_tokens} for each in tried]
    stairs = []
    for size in sorted({each["bytes"] for each in tried[1:]}):
        chosen = lab.cache_under_budget(_model(given) | {"schemes": SCHEMES[1:]}, size, n_tokens)
        stairs.append({"budget_a_token": size / n_tokens, "kind": chosen["kind"], "error": chosen["error"]})
    return {"tokens": n_tokens, "heads": given[1].shape[0], "d": given[1].shape[2], "points": points, "stairs": stairs}


def _tried(lab: ModuleType, scheme: dict[str, Any], given: tuple[Any, ...]) -> dict[str, Any]:
    return lab.cache_under_budget(_model(given) | {"schemes": [scheme]}, 10**12, given[1].shape[1])


def _model(given: tuple[Any, ...]) -> dict[str, Any]:
    return {"layers": 1, "dtype_bytes": 2, **dict(zip("qkv", given, strict=True))}


def draw_budget(data: dict[str, Any]) -> Figure:
    """Draw error over bytes, a point for each scheme, with the staircase of the best that fits."""
    figure, ax = plt.subplots(figsize=(5.0, 5.8))
    for kind, (colour, mark) in MARKS.items():
        points = [(each["bytes_a_token"], each["error"]) for each in data["points"] if each["kind"] == kind]
        ax.plot(*zip(*points, strict=True), mark, color=colour, label=kind, zorder=3)
    steps = [(each["budget_a_token"], each["error"]) for each in data["stairs"]]
    ax.step(*zip(*steps, strict=True), where="post", color=MUTED, linewidth=1.2, label="the best that fits")
    full = next(each["bytes_a_token"] for each in data["points"] if each["kind"] == "full")
    ax.axvline(full, color=INK, linestyle=":", linewidth=1)
    ax.annotate("full", (full, 1.6), xytext=(-3, 0), textcoords="offset points", ha="right", size=8.5)
    for each in data["points"]:
        if each["kind"] != "full":
            dx, dy, side = BESIDE.get(_short(each), (5, 4, "left"))
            ax.annotate(
                _short(each),
                (each["bytes_a_token"], each["error"]),
                xytext=(dx, dy),
                textcoords="offset points",
                size=8.5,
                color=MUTED,
                ha=side,
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([16, 32, 64, 128, 256, 512], ["16", "32", "64", "128", "256", "512"])
    ax.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    ax.minorticks_off()
    ax.set(xlabel="bytes a token and layer", ylabel="error of attention's output, relative", xlim=(13, 620))
    ax.legend(loc="lower left", fontsize=8.5)
    return figure


def _short(scheme: dict[str, Any]) -> str:
    numbers = [value for name, value in scheme.items() if name not in ("kind", "bytes", "error", "bytes_a_token")]
    separator = {"window": " + ", "quantized": "/"}.get(scheme["kind"], "")
    return separator.join(map(str, numbers))


def _generator() -> Any:
    return torch.Generator().manual_seed(12)


FIGURES = {
    "12_latent": Recipe(latent_data, draw_latent),
    "12_bits": Recipe(bits_data, draw_bits),
    "12_sinks": Recipe(sinks_data, draw_sinks),
    "12_error_over_bytes": Recipe(budget_data, draw_budget),
}
