"""Chapter 12's figures: bytes of a token, what a latent vector costs, bits by channel.

Lab 12's solution is run, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.harness import solution_module
from labkit.meters.moved import MovedBytes
from labkit.meters.tensors import measure_peak
from labkit.testing.layer_sample import layer_sample
from labstaff.figures import BLUE, GREEN, MUTED, ORANGE, PINK, Recipe

HEADS, WIDTHS = 16, {"d_n": 32, "d_r": 16, "d_c": 64, "d_v": 32}
LENGTHS = [2**power for power in range(9, 15)]


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


def _generator() -> Any:
    return torch.Generator().manual_seed(12)


FIGURES = {
    "12_latent": Recipe(latent_data, draw_latent),
    "12_bits": Recipe(bits_data, draw_bits),
}
