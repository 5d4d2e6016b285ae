"""Chapter 02: what is alive in a training step, the parts of one benchmark row, and what fits a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.bench.accounting import (
    CUDA_ROUNDING_BYTES,
    CUDA_WORKSPACE_BYTES,
    GIB,
    MIB,
    SOFTMAXES,
    attention_memory,
    longest_that_fits,
)
from labkit.bench.variants import built_in_softmax, written_out
from labkit.meters.allocation import AllocationMeter, Block, Event
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Recipe

BATCH, N, D = 8, 256, 16
SQUARE = (BATCH, N, N)
CAPACITY_BYTES = 98 * GIB
PUBLISHED_MIB = {256: 72.7739, 1024: 195.094, 4096: 2124.38, 8192: 8280.75, 16384: 32881.5}
"""`mem_max_MB` of the published benchmark at d_model 16."""
LISTED = {"Q, K, V": 3, "S": 16, "P": 16, "O": 1, "dQ, dK, dV": 3}
"""The published parts of the smallest row besides 64 MiB of workspace, in units of 0.125 MiB."""

NAMES = {"products": "QKᵀ", "scores": "S", "shifted": "Z", "exponentials": "E", "row_sums": "ℓ", "weights": "P"}
# What the backward pass makes, by autograd node and operator; more than one in the order they are made.
MADE_BY = {
    ("BmmBackward0", "bmm"): ["dP"],
    ("DivBackward0", "div"): ["E/ℓ", "E/ℓ²", "dP/ℓ", "dS/√d"],
    ("DivBackward0", "neg"): ["−dP"],
    ("DivBackward0", "mul"): ["−dP·E/ℓ²"],
    ("SumBackward1", "add"): ["dE"],
    ("ExpBackward0", "mul"): ["dZ"],
    ("SubBackward0", "neg"): ["−dZ"],
    ("MaxBackward0", "new_zeros"): ["zeros"],
    ("MaxBackward0", "scatter"): ["dmax"],
    ("MaxBackward0", "add"): ["dS"],
    ("SoftmaxBackward0", "_softmax_backward_data"): ["dS"],
}
FORWARD_STEPS = {
    "written_out": ["QKᵀ", "÷ √d", "row max m", "Z = S − m", "E = exp Z", "ℓ = row sum", "P = E ÷ ℓ", "O = PV", "loss"],
    "built_in": ["QKᵀ", "÷ √d", "P = softmax S", "O = PV", "loss"],
}
BACKWARD_STEPS = {
    "written_out": {"DivBackward0": ["÷ ℓ", "÷ √d"], "BmmBackward0": ["PV", "QKᵀ"], "SumBackward1": ["row sum"]},
    "built_in": {"DivBackward0": ["÷ √d"], "BmmBackward0": ["PV", "QKᵀ"]},
}
NODE_STEPS = {"ExpBackward0": "exp", "SubBackward0": "− m", "MaxBackward0": "max", "SoftmaxBackward0": "softmax"}
OPERATORS = {"_softmax_backward_data": "backward", "new_zeros": "zeros"}


def written_out_data() -> dict[str, Any]:
    """Second training step with the softmax written out."""
    return _step_data("written_out")


def built_in_data() -> dict[str, Any]:
    """Second training step with the built-in softmax."""
    return _step_data("built_in")


def draw_step(data: dict[str, Any]) -> Figure:
    """Draw operators from top to bottom: N×N arrays as labelled bars in lanes, and all bytes alive next to them."""
    events = data["events"]
    size = (5.6, 1.1 + 0.215 * len(events))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, width_ratios=[3.9, 1.7])
    rows = range(len(events))
    live = [event["live_bytes"] / MIB for event in events]
    right.barh(rows, live, height=1.0, color=MUTED, alpha=0.25, linewidth=0)
    turn = next(row for row in rows if events[row]["pass"] == "backward")
    for array in data["squares"]:
        _labelled_bar(left, array, BLUE if array["born_in"] == "forward" else ORANGE, turn)
    for first, last, name in ((0, turn, "forward"), (turn, len(events), "backward")):
        peak = max(range(first, last), key=live.__getitem__)
        right.barh(peak, live[peak], height=1.0, color=INK, alpha=0.25, linewidth=0)
        right.text(0.25, peak, f"{live[peak]:.2f}", va="center", size=8.5, weight="bold")
        right.text(15.2, (first + last) / 2 - 0.5, name, rotation=-90, ha="center", va="center", size=9, color=MUTED)
    for axes in (left, right):
        axes.axhline(turn - 0.5, color=MUTED, linestyle="--", linewidth=1)
        axes.tick_params(axis="y", length=0)
    left.set_yticks(rows, [event["step"] for event in events], size=8)
    left.set(xlim=(0, 6), ylim=(len(events) - 0.5, -0.5))
    left.set_xlabel(f"N × N arrays, {data['square_bytes'] // MIB} MiB each")
    left.set_xticks(range(7))
    left.set_title("alive: N × N arrays")
    left.grid(axis="y", visible=False)
    right.set(xlim=(0, 16), xlabel="MiB")
    right.set_xticks([0, 4, 8, 12])
    right.set_title("in all")
    right.grid(axis="y", visible=False)
    return figure


def parts_data() -> dict[str, Any]:
    """The arrays alive at three moments of the second step, and the list that was published, in bytes."""
    events, after_forward = _second_step("written_out")
    moments = {
        "at the forward peak": max(events[: _turn(events)], key=_live).blocks,
        "after the forward pass": after_forward,
        "at the peak of the step": max(events, key=_live).blocks,
    }
    listed = {name: eighths * MIB // 8 for name, eighths in LISTED.items()}
    names = _names(events)
    bars = {"as published": listed, **{name: _by_name(blocks, names) for name, blocks in moments.items()}}
    return {
        "batch": BATCH,
        "N": N,
        "d": D,
        "workspace_bytes": CUDA_WORKSPACE_BYTES,
        "bars": {name: {"parts": parts, "total_bytes": sum(parts.values())} for name, parts in bars.items()},
    }


def draw_parts(data: dict[str, Any]) -> Figure:
    """Draw the whole row to scale, and below it, enlarged, the tensors alive at each moment."""
    figure, (whole, zoom) = plt.subplots(2, 1, figsize=(5.4, 5.0), height_ratios=[1, 5])
    workspace = data["workspace_bytes"] / MIB
    tensors = data["bars"]["at the forward peak"]["total_bytes"] / MIB
    for start, width, label, colour in (
        (0, workspace, f"workspace {workspace:.0f}", MUTED),
        (workspace, tensors, f"{tensors:.2f}", BLUE),
    ):
        whole.barh(0, width - 0.3, left=start, color=colour, alpha=0.3, linewidth=0)
        whole.text(start + width / 2, 0, label, ha="center", va="center", size=9)
    whole.set(xlim=(0, 80), ylim=(-0.6, 0.6))
    whole.set_yticks([])
    whole.set_title(f"the row’s mem_max_MB: {workspace + tensors:.4f} MiB")
    for y, (name, bar) in enumerate(data["bars"].items()):
        start = 0.0
        for part, nbytes in bar["parts"].items():
            width = nbytes / MIB
            colour = _part_colour(part)
            zoom.barh(y, max(width - 0.05, 0.02), left=start, height=0.5, color=colour, alpha=0.32, linewidth=0)
            if width > 1:
                zoom.text(start + width / 2, y, part, ha="center", va="center", size=8.5)
            start += width
        zoom.text(0, y - 0.31, f"{name}: {start:.4f} MiB", ha="left", va="bottom", size=9, weight="bold")
        zoom.text(0.1, y + 0.29, _small_parts(bar["parts"]), ha="left", va="top", size=7.5, color=MUTED)
    zoom.set(xlim=(0, 13.2), ylim=(len(data["bars"]) - 0.35, -0.7), xlabel="MiB besides the workspace")
    zoom.set_yticks([])
    zoom.grid(axis="y", visible=False)
    zoom.set_title("enlarged: the arrays", pad=8)
    return figure


def fit_data() -> dict[str, Any]:
    """Bytes over N under three definitions for two softmaxes, and the longest N within 98 GiB."""
    ns = [256, *range(2048, 45057, 2048)]

    def curve(softmax: str, definition: str) -> dict[str, Any]:
        parts = [attention_memory(BATCH, n, D, definition=definition, softmax=softmax) for n in ns]
        longest = longest_that_fits(CAPACITY_BYTES, BATCH, D, definition=definition, softmax=softmax)
        return {"bytes": [sum(part.values()) for part in parts], "longest": longest}

    definitions = ("step_peak", "forward_peak", "inference_peak")
    return {
        "batch": BATCH,
        "d": D,
        "capacity_bytes": CAPACITY_BYTES,
        "N": ns,
        "softmaxes": {softmax: {name: curve(softmax, name) for name in definitions} for softmax in SOFTMAXES},
        "published_mib": [{"N": n, "mem_max_mib": mib} for n, mib in PUBLISHED_MIB.items()],
        "published_formula_bytes": [2 * BATCH * n**2 * 4 + CUDA_WORKSPACE_BYTES for n in ns],
    }


def draw_fit(data: dict[str, Any]) -> Figure:
    """Draw one panel per softmax on linear axes, with the capacity as a line and the crossings marked."""
    figure, panels = plt.subplots(2, 1, figsize=(5.2, 7.0), sharex=True)
    titles = {"written_out": "softmax written out", "built_in": "built-in softmax"}
    capacity = data["capacity_bytes"] / GIB
    for axes, (softmax, curves) in zip(panels, data["softmaxes"].items(), strict=True):
        for (definition, curve), colour, line, width in zip(
            curves.items(), (ORANGE, BLUE, GREEN), ("-", "-", (0, (2, 2))), (1.8, 3.2, 1.8), strict=True
        ):
            label = definition.replace("_", " ")
            axes.plot(
                data["N"],
                [nbytes / GIB for nbytes in curve["bytes"]],
                color=colour,
                linestyle=line,
                linewidth=width,
                alpha=0.55 if definition == "forward_peak" else 1,
                label=f"{label}: fits to {curve['longest']:,}",
            )
            axes.plot(curve["longest"], capacity, "o", color=colour, markersize=5)
        axes.axhline(capacity, color=INK, linestyle="-", linewidth=1.1)
        axes.text(500, capacity - 2, f"{capacity:.0f} GiB", size=9, va="top")
        axes.set(ylim=(0, 172), xlim=(0, 44000), ylabel="GiB")
        axes.set_title(titles[softmax], weight="bold")
    formula = [nbytes / GIB for nbytes in data["published_formula_bytes"]]
    panels[0].plot(data["N"], formula, color=PINK, linestyle=":", linewidth=2.2, label="published formula")
    points = data["published_mib"]
    panels[0].plot(
        [point["N"] for point in points],
        [point["mem_max_mib"] * MIB / GIB for point in points],
        "D",
        color=INK,
        markersize=5.5,
        linestyle="none",
        label="published table",
        zorder=5,
    )
    for axes in panels:
        axes.legend(loc="upper left", fontsize=8.5, handlelength=2.4)
    panels[1].set_xticks(range(0, 40961, 8192), [f"{n:,}" for n in range(0, 40961, 8192)])
    panels[1].set_xlabel(f"sequence length N (batch {data['batch']}, d = {data['d']}, float32)")
    return figure


FIGURES = {
    "02_step_written_out": Recipe(written_out_data, draw_step),
    "02_step_built_in": Recipe(built_in_data, draw_step),
    "02_parts_of_a_row": Recipe(parts_data, draw_parts),
    "02_what_fits": Recipe(fit_data, draw_fit),
}


def _second_step(form: str) -> tuple[list[Event], tuple[Block, ...]]:
    """Run two training steps on the CPU; return the second one's events, and what is alive between its two passes.

    Storages are rounded up as on CUDA. Of the second step, because its gradients and a loss are there from the first.
    """
    attention = {"written_out": written_out, "built_in": built_in_softmax}[form]
    with AllocationMeter(round_to=CUDA_ROUNDING_BYTES, timeline=True) as meter:
        q, k, v = (meter.name("Q, K, V", torch.randn(BATCH, N, D, requires_grad=True)) for _ in range(3))
        after_forward: tuple[Block, ...] = ()
        for _ in range(2):
            meter.reset()
            loss = meter.name("loss", attention(q, k, v, meter.name).sum())
            after_forward = meter.blocks
            loss.backward()
            for tensor in (q, k, v):
                if tensor.grad is not None:
                    meter.name("dQ, dK, dV", tensor.grad)
        events = meter.events
    return events, after_forward


def _step_data(form: str) -> dict[str, Any]:
    events, _ = _second_step(form)
    turn = _turn(events)
    shown: list[int] = []
    seen: set[int] = {id(block) for block in _standing(events)}
    for index, event in enumerate(events):
        fresh = [block for block in event.blocks if id(block) not in seen]
        seen |= {id(block) for block in event.blocks}
        if fresh:
            shown.append(index)
    steps = _step_names(form, [events[index] for index in shown], sum(index < turn for index in shown))
    return {
        "form": form,
        "batch": BATCH,
        "N": N,
        "d": D,
        "square_bytes": BATCH * N * N * 4,
        "events": [
            {
                "step": step,
                "pass": "forward" if index < turn else "backward",
                "operator": events[index].op,
                "live_bytes": events[index].live_bytes,
            }
            for step, index in zip(steps, shown, strict=True)
        ],
        "squares": _lanes([events[index] for index in shown], sum(index < turn for index in shown)),
    }


def _standing(events: list[Event]) -> list[Block]:
    """The blocks that existed before the step: all but the result of its first product."""
    return [block for block in events[0].blocks if block.op != "aten::bmm" or block.node is not None]


def _turn(events: list[Event]) -> int:
    return next(index for index, event in enumerate(events) if event.op == "aten::ones_like")


def _live(event: Event) -> int:
    return event.live_bytes


def _step_names(form: str, events: list[Event], n_forward: int) -> list[str]:
    names, runs, node = list(FORWARD_STEPS[form]), Counter[str](), None
    products = iter(("dV", "dP", "dK", "dQ"))
    for event in events[n_forward:]:
        operator = event.op.removeprefix("aten::")
        if event.node is None:
            names.append("dloss = 1")
            continue
        if event.node != node:
            runs[event.node] += 1
        node = event.node
        several = BACKWARD_STEPS[form].get(node)
        step = several[runs[node] - 1] if several else NODE_STEPS[node]
        names.append(f"{step}: {next(products) if operator == 'bmm' else OPERATORS.get(operator, operator)}")
    return names


def _lanes(events: list[Event], n_forward: int) -> list[dict[str, Any]]:
    """The N×N arrays with the events they are born in and die after, each in the first lane that is free."""
    names = _names(events)
    arrays: dict[int, dict[str, Any]] = {}
    for row, event in enumerate(events):
        squares = [block for block in event.blocks if block.shape == SQUARE]
        alive = {id(block) for block in squares}
        taken = {array["lane"] for key, array in arrays.items() if key in alive}
        for block in squares:
            if id(block) not in arrays:
                lane = next(lane for lane in range(len(arrays) + 1) if lane not in taken)
                taken.add(lane)
                born_in = "forward" if row < n_forward else "backward"
                arrays[id(block)] = {"name": names[id(block)], "born_in": born_in, "lane": lane, "first": row}
            arrays[id(block)]["last"] = row
    return list(arrays.values())


def _names(events: list[Event]) -> dict[int, str]:
    """A name for every N×N array, by the id of its block."""
    left = {key: list(names) for key, names in MADE_BY.items()}
    if not any(event.node == "SubBackward0" for event in events):
        left["DivBackward0", "div"] = ["dS/√d"]
    found: dict[int, str] = {}
    for event in events:
        for block in event.blocks:
            if block.shape == SQUARE and id(block) not in found:
                key = (block.node or "", block.op.removeprefix("aten::"))
                found[id(block)] = NAMES[block.name] if block.name else left[key].pop(0)
    return found


def _by_name(blocks: Iterable[Block], names: dict[int, str]) -> dict[str, int]:
    """Live bytes by name; arrays with the same name are added up."""
    parts = Counter[str]()
    for block in blocks:
        small = NAMES.get(block.name or "", block.name or block.op.removeprefix("aten::"))
        parts[names.get(id(block), small)] += block.nbytes
    return dict(parts)


def _small_parts(parts: dict[str, int]) -> str:
    small = {name.replace("ones_like", "dloss"): nbytes for name, nbytes in parts.items() if nbytes < MIB}
    return ", ".join(
        f"{name} {nbytes / MIB:.3f}".rstrip("0") if nbytes >= MIB // 16 else f"{name} {nbytes:,} B"
        for name, nbytes in small.items()
    )


def _part_colour(part: str) -> str:
    if part in ("S", "Z", "E", "P"):
        return BLUE
    return GREEN if part in ("Q, K, V", "dQ, dK, dV", "O", "dV") else ORANGE


def _labelled_bar(axes: Axes, array: dict[str, Any], colour: str, turn: int) -> None:
    first, last, label = array["first"], array["last"], array["name"]
    x, middle = array["lane"] + 0.5, (first + last) / 2
    axes.bar(x, last - first + 0.9, bottom=first - 0.45, width=0.92, color=colour, alpha=0.3, linewidth=0)
    if abs(middle - (turn - 0.5)) < 0.8:  # off the line between the passes
        middle = turn - 1.5
    axes.text(x, middle, label, ha="center", va="center", size=9 if len(label) < 5 else 7)
