"""Chapter 01, the first figure: one multiprocessor of an A100, and the memory below it."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PINK, Recipe

# The A100 whitepaper's numbers for the whole chip; what a sub-partition of a multiprocessor does follows from them.
SMS, CLOCK_HZ = 108, 1.41e9
FP32_FLOPS, TENSOR_FLOPS = 19.5e12, 312e12
SUB_PARTITIONS, WARP, WARPS_AN_SM = 4, 32, 64
REGISTER_KIB, L1_KIB, SHARED_KIB = 256, 192, 164
L2_MIB, HBM_GB = 40, 40


def multiprocessor_data() -> dict[str, Any]:
    """The contents of one sub-partition of a multiprocessor, and its work per clock."""
    per_clock = SMS * CLOCK_HZ * SUB_PARTITIONS
    return {
        "gpu": "A100 SXM 40 GB",
        "sms": SMS,
        "sub_partitions": SUB_PARTITIONS,
        "threads_in_a_warp": WARP,
        "warps_a_sub_partition": WARPS_AN_SM // SUB_PARTITIONS,
        "fp32_lanes_a_sub_partition": round(FP32_FLOPS / per_clock / 2),
        "tensor_flops_a_clock_a_sub_partition": round(TENSOR_FLOPS / per_clock),
        "registers_a_sub_partition_kib": REGISTER_KIB // SUB_PARTITIONS,
        "l1_and_shared_kib": L1_KIB,
        "shared_at_most_kib": SHARED_KIB,
        "l2_mib": L2_MIB,
        "hbm_gb": HBM_GB,
    }


def draw_multiprocessor(data: dict[str, Any]) -> Figure:
    """Draw warps, units, registers and memories from top to bottom."""
    figure, ax = plt.subplots(figsize=(5.0, 7.4))
    ax.set(xlim=(0, 100), ylim=(148, 0))
    ax.axis("off")
    _box(ax, (1, 1, 98, 103), MUTED, 0.06)
    ax.text(50, 5.5, f"one multiprocessor (SM), of {data['sms']}", ha="center", va="center", weight="bold", size=10.5)
    for number in range(1, data["sub_partitions"] + 1):
        _draw_sub_partition(ax, number, data)
    _box(ax, (4, 81, 92, 19), GREEN, 0.22)
    _say(ax, 50, 86.5, "shared memory (SRAM) and L1", bold=True)
    _say(ax, 50, 91, f"{data['l1_and_shared_kib']} KiB, of it shared at most {data['shared_at_most_kib']} KiB")
    _say(ax, 50, 95.5, "what the threads of one block share")
    _arrow(ax, 104, 110)
    _box(ax, (4, 110, 92, 13), PINK, 0.2)
    _say(ax, 50, 114, "L2 cache", bold=True)
    _say(ax, 50, 119, f"{data['l2_mib']} MiB, one for all multiprocessors")
    _arrow(ax, 123, 129)
    _box(ax, (1, 129, 98, 17), ORANGE, 0.2)
    _say(ax, 50, 134, "HBM", bold=True)
    _say(ax, 50, 139.5, f"{data['hbm_gb']} GB next to the chip: every tensor is here")
    return figure


def _draw_sub_partition(ax: Axes, number: int, data: dict[str, Any]) -> None:
    """A sub-partition: the warp that it runs in this clock, its registers, its units."""
    left = 4 + (number - 1) * 23.4
    width = 21.8
    middle = left + width / 2
    _say(ax, middle, 12, f"sub-partition {number}", bold=True)
    _say(ax, middle, 16.5, f"1 of {data['warps_a_sub_partition']} warps:")
    threads = range(data["threads_in_a_warp"])
    x = [left + 2.3 + thread % 8 * 2.45 for thread in threads]
    ax.plot(x, [21 + thread // 8 * 3 for thread in threads], "o", color=INK, markersize=3.2)
    _say(ax, middle, 33.5, f"{data['threads_in_a_warp']} threads")
    _box(ax, (left, 36, width, 14), BLUE, 0.22)
    _say(ax, middle, 40.5, "registers", bold=True)
    _say(ax, middle, 45.5, f"{data['registers_a_sub_partition_kib']} KiB")
    _box(ax, (left, 52, width, 12), PAPER, 1)
    _say(ax, middle, 56, f"{data['fp32_lanes_a_sub_partition']} lanes", bold=True)
    _say(ax, middle, 60.5, "for float32")
    _box(ax, (left, 66, width, 13), ORANGE, 0.3)
    _say(ax, middle, 70, "tensor core", bold=True)
    _say(ax, middle, 75, f"{data['tensor_flops_a_clock_a_sub_partition']} FLOP/clock")


def _box(ax: Axes, place: tuple[float, float, float, float], colour: str, alpha: float) -> None:
    x, y, width, height = place
    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, alpha=alpha, linewidth=0))
    edge = MUTED if colour == PAPER else colour
    ax.add_patch(Rectangle((x, y), width, height, facecolor="none", edgecolor=edge, linewidth=1.2))


def _say(ax: Axes, x: float, y: float, text: str, *, bold: bool = False) -> None:
    ax.text(x, y, text, ha="center", va="center", size=9 if bold else 8.5, weight="bold" if bold else "normal")


def _arrow(ax: Axes, start: float, end: float) -> None:
    look = {"arrowstyle": "<->", "color": MUTED, "linewidth": 1.6}
    ax.annotate("", xy=(50, end), xytext=(50, start), arrowprops=look)


FIGURES = {"01_multiprocessor": Recipe(multiprocessor_data, draw_multiprocessor)}
