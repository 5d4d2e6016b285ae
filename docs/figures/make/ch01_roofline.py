"""Chapter 01, figures from published numbers: the memory levels of two GPUs, and their rooflines."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labstaff.figures import BLUE, GRID, ORANGE, Recipe

# Sizes and rates as the vendors print them, and HBM as nvidia-smi does; the chapter's tables name the source of each.
CHIPS: dict[str, dict[str, Any]] = {
    "A100 SXM 40 GB": {
        "sms": 108,
        "clock_ghz": 1.41,
        "register_kib_per_sm": 256,
        "l1_kib_per_sm": 192,
        "l2_mib": 40,
        "l2_tb_s": 5120 * 1.41e9 / 1e12,
        "hbm_mib": 40_960,
        "hbm_tb_s": 1.555,
        "pcie_lane_gbit_s": 16,
        "fp16_tensor_tflops": 312.0,
        "fp32_tflops": 19.5,
    },
    "H100 SXM 80 GB": {
        "sms": 132,
        "clock_ghz": 1.83,
        "register_kib_per_sm": 256,
        "l1_kib_per_sm": 256,
        "l2_mib": 50,
        "l2_tb_s": 12.0,
        "hbm_mib": 81_559,
        "hbm_tb_s": 3.35,
        "pcie_lane_gbit_s": 32,
        "fp16_tensor_tflops": 989.4,
        "fp32_tflops": 66.9,
    },
}
SHARED_BYTES_PER_CLOCK = 128  # 32 banks of 4 bytes in each SM
LEVELS = [
    ("registers", "registers_mib", "", ()),
    ("L1 and shared memory (SRAM)", "l1_and_shared_mib", "shared_tb_s", ("A100 SXM 40 GB", "H100 SXM 80 GB")),
    ("L2 cache", "l2_mib", "l2_tb_s", ("A100 SXM 40 GB",)),
    ("HBM, where every tensor is", "hbm_mib", "hbm_tb_s", ()),
    ("host memory, over PCIe", "", "host_gb_s_each_way", ()),
]
"""Title, keys of size and bandwidth, and for which chips the bandwidth is a computed bound, not a vendor's figure."""
CHIP_LOOKS = [("A100 SXM 40 GB", -0.2, BLUE, "o", "-"), ("H100 SXM 80 GB", 0.5, ORANGE, "s", "--")]
"""Name, place below the level's title, colour, marker and dash."""
PCIE_LANES, PCIE_CODE = 16, 128 / 130  # of 130 bits on a lane, 128 are data


def hierarchy_data() -> dict[str, Any]:
    """Sizes and bandwidths of each level, per chip: whole-chip totals from per-SM numbers."""
    rows = {}
    for name, chip in CHIPS.items():
        sms = chip["sms"]
        rows[name] = {
            "registers_mib": sms * chip["register_kib_per_sm"] / 1024,
            "l1_and_shared_mib": sms * chip["l1_kib_per_sm"] / 1024,
            "shared_tb_s": sms * SHARED_BYTES_PER_CLOCK * chip["clock_ghz"] / 1e3,
            "l2_mib": chip["l2_mib"],
            "l2_tb_s": chip["l2_tb_s"],
            "hbm_mib": chip["hbm_mib"],
            "hbm_tb_s": chip["hbm_tb_s"],
            "host_gb_s_each_way": PCIE_LANES * chip["pcie_lane_gbit_s"] * PCIE_CODE / 8,
        }
    return {"chips": rows}


def draw_hierarchy(data: dict[str, Any]) -> Figure:
    """Draw for each level how fast it is and what it holds, on logarithmic axes, two chips below each other."""
    figure, (rates, sizes) = plt.subplots(1, 2, figsize=(5.0, 5.8), sharey=True)
    for axes, title, limits in (
        (rates, "bandwidth, TB/s", (0.01, 900)),
        (sizes, "size, GiB", (0.01, 2500)),
    ):
        axes.set_xscale("log")
        ticks = [0.01, 0.1, 1, 10, 100]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlim=limits, ylim=(2 * len(LEVELS) - 0.9, -1.2), yticks=[])
        axes.grid(axis="y", visible=False)
        axes.set_title(title)
    for at, (title, size, rate, bounds) in enumerate(LEVELS):
        for name, offset, colour, marker, dash in CHIP_LOOKS:
            chip, y = data["chips"][name], 2 * at + offset
            tb_s = chip[rate] / 1000 if rate == "host_gb_s_each_way" else chip.get(rate)
            shown = "not published" if tb_s is None else f"{'≤ ' if name in bounds else ''}{tb_s + 1e-9:.3g}"
            _mark(rates, y, tb_s, shown, colour, marker, dash)
            mib = chip.get(size)
            shown = "as you bought" if mib is None else f"{mib / 1024:.2f} GiB" if mib > 1024 else f"{mib:.4g} MiB"
            _mark(sizes, y, mib and mib / 1024, shown, colour, marker, dash)
        rates.text(0.01, 2 * at - 0.72, title, va="center", weight="bold", size=9.5)
    marks = [Line2D([], [], color=colour, marker=marker, linestyle=dash) for _, _, colour, marker, dash in CHIP_LOOKS]
    figure.legend(marks, [look[0] for look in CHIP_LOOKS], loc="outside lower center", ncols=2)
    return figure


def _mark(axes: Axes, y: float, x: float | None, label: str, colour: str, marker: str, dash: str) -> None:
    left = axes.get_xlim()[0]
    if x is not None:
        axes.plot([left, x], [y, y], color=colour, linestyle=dash, linewidth=1.2)
        axes.plot([x], [y], marker, color=colour, markersize=6.5)
    axes.annotate(label, (x or left, y), xytext=(7, 0), textcoords="offset points", va="center", size=9)


def roofline_data() -> dict[str, Any]:
    """FLOPs, HBM bytes and intensity of each step (one head, 16-bit), and the least time each can take per chip."""
    n, d, e, rows = 4096, 64, 2, 128
    matmul, softmax = 2 * n * n * d, 5 * n * n
    work = {
        "QKᵀ": (matmul, e * (2 * n * d + n * n), "fp16_tensor_tflops"),
        "softmax": (softmax, e * 2 * n * n, "fp32_tflops"),
        "PV": (matmul, e * (2 * n * d + n * n), "fp16_tensor_tflops"),
        "fused, K and V read again by every 128 rows": (
            2 * matmul + softmax,
            e * (2 * n * d + 2 * n * d * n // rows),
            "fp16_tensor_tflops",
        ),
        "fused, every input read once": (2 * matmul + softmax, e * 4 * n * d, "fp16_tensor_tflops"),
    }
    chips = {
        name: {
            "hbm_tb_s": chip["hbm_tb_s"],
            "fp16_tensor_tflops": chip["fp16_tensor_tflops"],
            "fp32_tflops": chip["fp32_tflops"],
            "ridge_fp16_tensor": chip["fp16_tensor_tflops"] / chip["hbm_tb_s"],
            "ridge_fp32": chip["fp32_tflops"] / chip["hbm_tb_s"],
            "steps": {
                step: {
                    "hbm_us": moved / chip["hbm_tb_s"] / 1e6,
                    "arithmetic_us": flops / chip[unit] / 1e6,
                    "at_most_tflops": min(chip[unit], flops / moved * chip["hbm_tb_s"]),
                }
                for step, (flops, moved, unit) in work.items()
            },
        }
        for name, chip in CHIPS.items()
    }
    steps = {
        step: {"flops": flops, "hbm_bytes": moved, "flop_per_byte": flops / moved}
        for step, (flops, moved, _) in work.items()
    }
    return {"N": n, "d": d, "bytes_per_element": e, "steps": steps, "chips": chips}


def draw_roofline(data: dict[str, Any]) -> Figure:
    """Draw both chips' rooflines with the steps of attention."""
    figure, axes = plt.subplots(figsize=(5.0, 5.6))
    x = np.geomspace(0.3, 6000, 400)
    above: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "bottom", "size": 8.5}
    marks = {
        "softmax": "v",
        "QKᵀ": "o",
        "fused, K and V read again by every 128 rows": "D",
        "fused, every input read once": "*",
    }
    for (name, chip), colour, dash in zip(data["chips"].items(), (BLUE, ORANGE), ("-", "--"), strict=True):
        roof = np.minimum(chip["fp16_tensor_tflops"], x * chip["hbm_tb_s"])
        axes.plot(
            x, roof, color=colour, linestyle=dash, label=f"{name}: ridge at {chip['ridge_fp16_tensor']:.0f} FLOP/byte"
        )
        low = x >= chip["ridge_fp32"]
        axes.plot(x[low], np.full(low.sum(), chip["fp32_tflops"]), color=colour, linestyle=":", linewidth=1.2)
        for unit, key in (("fp32 units", "fp32_tflops"), ("fp16 tensor cores", "fp16_tensor_tflops")):
            gap = 2 if key == "fp32_tflops" else 6
            axes.annotate(f"{unit} {chip[key]:.3g}", (5600, chip[key]), xytext=(0, gap), **above)
        for step, marker in marks.items():
            point = (data["steps"][step]["flop_per_byte"], chip["steps"][step]["at_most_tflops"])
            axes.plot(*point, marker, color=colour, markersize=11 if marker == "*" else 7, zorder=4)
    labels = {
        "softmax": "softmax",
        "QKᵀ": "QKᵀ, PV",
        "fused, K and V read again by every 128 rows": "fused,\nre-read",
        "fused, every input read once": "fused,\nonce",
    }
    for step, label in labels.items():
        intensity = data["steps"][step]["flop_per_byte"]
        axes.axvline(intensity, color=GRID, linewidth=0.9, linestyle="-", zorder=0)
        side, shift = ("right", -4) if step in ("QKᵀ", "fused, every input read once") else ("left", 4)
        text = f"{label}\n{intensity:.2f}" if intensity < 10 else f"{label}\n{intensity:.0f}"
        place: dict[str, Any] = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side, "va": "bottom"}
        axes.annotate(text, (intensity, 0.4), size=9, **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(
        xlim=(0.3, 6000),
        ylim=(0.35, 4000),
        xlabel="arithmetic intensity, FLOP per byte of HBM traffic",
        ylabel="TFLOP/s, at most",
    )
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.minorticks_off()
    axes.legend(loc="upper left", borderaxespad=0.1)
    return figure


FIGURES = {
    "01_memory_hierarchy": Recipe(hierarchy_data, draw_hierarchy),
    "01_roofline": Recipe(roofline_data, draw_roofline),
}
