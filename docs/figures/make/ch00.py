"""The front page's figure and the course map: how its labs depend on each other.

Lab 05's solution is measured, so the first figure's data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from benchmarks.harness import solution_module
from labkit.labs.catalog import find_labs
from labkit.meters.tensors import AllocationMeter
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

MIB = 2**20
HEAD_DIM = 64
BLOCK = 256
LENGTHS = [512, 1024, 2048, 3072, 4096]
TRACKS = 6
MAP_LOOKS = [(BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PINK, "-"), (INK, ":"), (ORANGE, "-"), (BLUE, "--")]
"""Colour and dash of the lines on the course map, in turn."""


def front_data() -> dict[str, Any]:
    """Peak bytes of one training step over its inputs, gradients included, of the textbook form and of Lab 05's."""
    flash = solution_module("05")

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, K, V):  # type: ignore[no-untyped-def]
            O, L = flash.flash_forward(Q, K, V, False, BLOCK, BLOCK)
            ctx.save_for_backward(Q, K, V, O, L)
            return O

        @staticmethod
        def backward(ctx, dO):  # type: ignore[no-untyped-def]
            return flash.flash_backward(*ctx.saved_tensors, dO, False, BLOCK, BLOCK)

    def textbook(Q, K, V):  # type: ignore[no-untyped-def]
        return (Q @ K.mT * HEAD_DIM**-0.5).softmax(-1) @ V

    points = []
    for n in LENGTHS:
        point: dict[str, int] = {"N": n}
        for name, attention in (("textbook", textbook), ("flash", Flash.apply)):
            generator = torch.Generator().manual_seed(0)
            inputs = [torch.randn(n, HEAD_DIM, generator=generator).requires_grad_() for _ in range(3)]
            with AllocationMeter() as meter:
                attention(*inputs).sum().backward()
            point[f"{name}_peak_bytes"] = meter.peak_bytes
        points.append(point)
    return {"d": HEAD_DIM, "dtype": "float32", "block": BLOCK, "points": points}


def draw_front(data: dict[str, Any]) -> Figure:
    """Draw both peaks over N on linear axes, where growth with the square is visible."""
    figure, axes = plt.subplots(figsize=(5.6, 3.3))
    ns = [point["N"] for point in data["points"]]
    peaks = {name: [point[f"{name}_peak_bytes"] / MIB for point in data["points"]] for name in ("textbook", "flash")}
    curve = np.linspace(ns[0], ns[-1], 100)
    axes.plot(curve, 4 * (3 * curve**2 + curve * data["d"]) / MIB, color=ORANGE, linestyle="--")
    axes.plot(ns, peaks["textbook"], "s", color=ORANGE)
    axes.plot(ns, peaks["flash"], color=BLUE, linestyle="-", marker="o")
    axes.text(3350, 152, "textbook attention, 3N² + Nd", ha="right", color=ORANGE, weight="bold")
    axes.text(1900, 15, "FlashAttention, as you write it in Lab 05", color=BLUE, weight="bold")
    for name, digits in (("textbook", 0), ("flash", 1)):
        axes.annotate(
            f"{peaks[name][-1]:.{digits}f} MiB",
            (ns[-1], peaks[name][-1]),
            (9, -4),
            textcoords="offset points",
            color=INK,
        )
    axes.set(xlim=(300, 4900), ylim=(-8, 212), xlabel="tokens N", ylabel="MiB at the peak")
    axes.set_xticks(ns)
    axes.set_title(f"memory of one training step of one head (d = {data['d']}, float32)")
    return figure


def map_data() -> dict[str, Any]:
    """The manifests' data of each lab: title, hours, points, chapters, and the labs it needs."""
    return {
        "labs": [
            {
                "lab": lab.label,
                "title": lab.title,
                "chapters": [path[5:7] for path in lab.read if path[5:7].isdigit()],
                "needs": list(lab.requires),
                "hours": lab.hours,
                "points": lab.points,
                "report_points": sum(question.points for question in lab.questions),
            }
            for lab in find_labs()
        ]
    }


def draw_map(data: dict[str, Any]) -> Figure:
    """Draw the labs from top to bottom; a lab's colour, dash and track lead from it to those that need it."""
    labs = data["labs"]
    figure, axes = plt.subplots(figsize=(5.0, 0.78 * len(labs) + 0.1))
    row = {lab["lab"]: at for at, lab in enumerate(labs)}
    looks = _looks(labs, row)
    for at, lab in enumerate(labs):
        box = FancyBboxPatch(
            (1.75, at + 0.14), 3.65, 0.72, boxstyle="round,pad=0,rounding_size=0.08", facecolor="none", edgecolor=MUTED
        )
        axes.add_patch(box)
        axes.text(1.9, at + 0.37, f"Lab {lab['lab'][3:]}  {lab['title']}", va="center", weight="bold")
        chapters = ", ".join(str(int(number)) for number in lab["chapters"])
        axes.text(
            1.9,
            at + 0.66,
            f"chapter {chapters} · {lab['hours']:g} h · {lab['points']:g} + {lab['report_points']:g} points",
            va="center",
            size=9,
            color=MUTED,
        )
        needed = [each for each in lab["needs"] if each in row]  # a course may leave labs out
        for number, each in enumerate(needed):
            _arrow(axes, row[each], at + 0.3 + 0.26 * number, looks[each])
    axes.set(xlim=(0, 5.45), ylim=(len(labs), 0))
    axes.set_axis_off()
    return figure


def _looks(labs: list[dict[str, Any]], row: dict[str, int]) -> dict[str, tuple[float, str, str]]:
    """By lab that others need: the place of its vertical line, its colour and its dash. Lines that meet stay apart."""
    looks: dict[str, tuple[float, str, str]] = {}
    free_from = [-1.0] * TRACKS
    sources = [lab["lab"] for lab in labs if any(lab["lab"] in other["needs"] for other in labs)]
    for at, source in enumerate(sources):
        last = max(row[lab["lab"]] for lab in labs if source in lab["needs"])
        track = min(range(TRACKS), key=lambda place: (free_from[place] > row[source], place))
        free_from[track] = last
        colour, dash = MAP_LOOKS[at % len(MAP_LOOKS)]
        looks[source] = (1.5 - 0.24 * track, colour, dash)
    return looks


def _arrow(axes: Axes, start: int, end: float, look: tuple[float, str, str]) -> None:
    """Draw a way out at the left of row `start`, down its track, and into a row at the height `end`."""
    x, colour, dash = look
    axes.plot([1.75, x, x, 1.65], [start + 0.78, start + 0.78, end, end], color=colour, linestyle=dash, linewidth=1.5)
    axes.plot([1.67], [end], marker=">", color=colour, markersize=6)


FIGURES = {"00_front": Recipe(front_data, draw_front), "00_course_map": Recipe(map_data, draw_map)}
