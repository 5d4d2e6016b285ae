"""Chapter 13's figures: a user's rate against the server's, batches, a request's states, and three servers at work.

Two of them run Lab 13's solution and its two other servers, so their data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from benchmarks.harness import solution_module
from labkit.serving.engine import serve
from labkit.serving.model import SPEC
from labkit.serving.requests import LIMITS, make_trace
from labstaff.authoring.board import REFERENCES
from labstaff.figures import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PINK, Recipe

KINDS, SEED = ("chat", "documents"), 0
"""The board's own traces."""

WEIGHTS, TOKEN, MEMORY, BANDWIDTH = 2 * 8_030_261_248, 131_072, 81_559 * 2**20, 3.35e12
"""Llama-3.1-8B in 16 bits on an H100: bytes of the weights and of a token, of the memory, and bytes a second."""

CONTEXTS = (512, 2000, 8192)
"""Tokens of each request."""

SHOWN = {2000: (1, 16, 64, 264)}
"""Requests at once that are marked, by tokens of each request."""

ANSWERS, SLOTS = (3, 8, 2, 5, 4, 2, 6, 3), 4
"""Steps that each request of the picture of batches takes; rows of a batch."""


def rates_data() -> dict[str, Any]:
    """By tokens of a request: requests at once, tokens a second for one of them and for all, at most."""
    lines = {}
    for tokens in CONTEXTS:
        most = int((MEMORY - WEIGHTS) // (TOKEN * tokens))
        at_once = sorted({*(2**power for power in range(12) if 2**power < most), *SHOWN.get(tokens, ()), most})
        steps = [(WEIGHTS + n * TOKEN * tokens) / BANDWIDTH for n in at_once]
        lines[str(tokens)] = {
            "at_once": at_once,
            "ms_a_step": [1000 * step for step in steps],
            "user": [1 / step for step in steps],
            "server": [n / step for n, step in zip(at_once, steps, strict=True)],
        }
    return {"weights": WEIGHTS, "token": TOKEN, "bandwidth": BANDWIDTH, "lines": lines}


def draw_rates(data: dict[str, Any]) -> Figure:
    """Draw the server's rate over a user's rate, a line for each length of the requests."""
    figure, ax = plt.subplots(figsize=(5.0, 4.8))
    looks = {"512": (GREEN, "-."), "2000": (BLUE, "-"), "8192": (ORANGE, "--")}
    for tokens, line in data["lines"].items():
        colour, dash = looks[tokens]
        ax.plot(line["user"], line["server"], color=colour, linestyle=dash)
        ax.plot(line["user"][-1], line["server"][-1], "X", color=colour, markersize=8)
        words = f"{int(tokens):,} tokens each:\n{line['at_once'][-1]} fill the memory"
        ax.annotate(
            words,
            (line["user"][-1], line["server"][-1]),
            xytext=(-4, 8),
            textcoords="offset points",
            size=8.5,
            color=colour,
        )
    line = data["lines"]["2000"]
    for n in SHOWN[2000][:-1]:
        at = line["at_once"].index(n)
        ax.plot(line["user"][at], line["server"][at], "o", color=BLUE)
        ax.annotate(
            f"{n} at once",
            (line["user"][at], line["server"][at]),
            xytext=(-8, -10 if n == 1 else 0),
            textcoords="offset points",
            size=8.5,
            ha="right",
            va="center",
        )
    ax.set_yscale("log")
    ax.set_yticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
    ax.minorticks_off()
    ax.set(xlim=(0, 215), ylim=(130, 90_000), xlabel="tokens a second for one user, at most")
    ax.set_ylabel("tokens a second of the server, at most")
    return figure


def batching_data() -> dict[str, Any]:
    """Which request is in which row of the batch, by step, when batches are fixed and when rows are refilled."""
    fixed: list[list[int | None]] = []
    for first in range(0, len(ANSWERS), SLOTS):
        batch = range(first, first + SLOTS)
        for step in range(max(ANSWERS[each] for each in batch)):
            fixed.append([each if step < ANSWERS[each] else None for each in batch])
    refilled: list[list[int | None]] = []
    left, waiting = dict(enumerate(ANSWERS)), list(range(len(ANSWERS)))
    rows: list[int | None] = [None] * SLOTS
    while any(left.values()):
        for row, each in enumerate(rows):
            if each is None or not left[each]:
                rows[row] = waiting.pop(0) if waiting else None
        refilled.append(list(rows))
        for each in rows:
            if each is not None:
                left[each] -= 1
    ways = {"static": fixed, "continuous": refilled}
    empty = {name: sum(row.count(None) for row in steps) for name, steps in ways.items()}
    return {"answers": list(ANSWERS), "rows": SLOTS, "steps": ways, "empty": empty}


def draw_batching(data: dict[str, Any]) -> Figure:
    """Draw a panel for each way, rows of the batch downwards and steps to the right."""
    figure, panels = plt.subplots(2, 1, figsize=(5.0, 3.9), sharex=True)
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    longest = max(len(steps) for steps in data["steps"].values())
    for ax, (name, steps) in zip(panels, data["steps"].items(), strict=True):
        for step, rows in enumerate(steps):
            for row, request in enumerate(rows):
                colour = GRID if request is None else (BLUE, ORANGE, GREEN, PINK)[request % 4]
                looks: dict[str, Any] = {"facecolor": colour, "alpha": 0.5, "edgecolor": PAPER, "linewidth": 1}
                if request is None:
                    looks = {"facecolor": "none", "edgecolor": MUTED, "linewidth": 0.6, "hatch": "////"}
                ax.add_patch(Rectangle((step, row), 1, 1, **looks))
                if request is not None:
                    ax.text(step + 0.5, row + 0.5, "ABCDEFGH"[request], ha="center", va="center", size=9)
        places = data["rows"] * len(steps)
        ax.set_title(f"{name}: {len(steps)} steps, {data['empty'][name]} of {places} places empty")
        ax.set(xlim=(0, longest), ylim=(data["rows"], 0), yticks=[], ylabel="rows")
        ax.grid(visible=False)
    panels[-1].set_xlabel("step")
    return figure


def states_data() -> dict[str, Any]:
    """How often requests went from one state to another: Lab 13's solution on the trace `chat`."""
    served = _served("chat", "")
    n, preempted = len(served["done"]), len(served["gave_way"])
    return {"trace": "chat", "submitted": n, "admitted": n + preempted, "preempted": preempted, "finished": n}


def draw_states(data: dict[str, Any]) -> Figure:
    """Draw the four states, one below the other, with the transitions between them."""
    figure, ax = plt.subplots(figsize=(5.0, 4.6))
    boxes = {
        "waiting": (3.4, 8.0, "waiting", "no blocks", INK),
        "running": (3.4, 4.4, "running", "has blocks, is computed", BLUE),
        "finished": (3.4, 0.8, "finished", "blocks given back", GREEN),
        "preempted": (8.2, 6.2, "preempted", "text kept,\nblocks taken", ORANGE),
    }
    for x, y, name, words, colour in boxes.values():
        half = 1.5 if name == "preempted" else 2.0
        ax.add_patch(
            FancyBboxPatch(
                (x - half, y - 0.65),
                2 * half,
                1.3,
                boxstyle="round,pad=0.1",
                facecolor="none",
                edgecolor=colour,
                linewidth=1.6,
            )
        )
        ax.text(x, y + 0.3, name, ha="center", va="center", size=10.5, weight="bold", color=colour)
        ax.text(x, y - 0.28, words, ha="center", va="center", size=8.5)
    arrows = [
        ((3.4, 9.9), (3.4, 8.85), f"a request comes: {data['submitted']}", (3.6, 9.5), "left"),
        ((3.4, 7.15), (3.4, 5.25), f"admitted: {data['admitted']} times", (3.2, 6.2), "right"),
        ((3.4, 3.55), (3.4, 1.65), f"last token made: {data['finished']}", (3.6, 2.6), "left"),
        (
            (5.55, 4.4),
            (8.2, 5.35),
            f"a block is needed and\nnone is free: {data['preempted']} times",
            (7.0, 4.3),
            "left",
        ),
        ((8.2, 7.05), (5.55, 8.0), "to the front\nof the queue", (7.3, 8.1), "left"),
    ]
    for start, end, words, place, side in arrows:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.4})
        ax.text(*place, words, size=8.5, ha=side, va="center")
    ax.set(xlim=(0, 10.6), ylim=(0, 10))
    ax.axis("off")
    return figure


def blocks_data() -> dict[str, Any]:
    """The board's three servers on the trace `chat`: see `_served`."""
    servers = [{"name": name, **_served("chat", other)} for name, other in REFERENCES.items()]
    return {
        "trace": "chat",
        "requests": len(servers[0]["done"]),
        "last_arrival": _trace("chat")[-1].arrival,
        "servers": servers,
    }


def waiting_data() -> dict[str, Any]:
    """The steps from each request's arrival to its first token, on both traces and by server."""
    waits = {
        kind: {name: sorted(_served(kind, other)["first"]) for name, other in REFERENCES.items()} for kind in KINDS
    }
    return {"steps_to_the_first_token": waits}


def draw_waiting(data: dict[str, Any]) -> Figure:
    """Draw a panel for each trace with a row of dots for each server, its median marked."""
    figure, panels = plt.subplots(2, 1, figsize=(5.0, 4.2))
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    for ax, (kind, servers) in zip(panels, data["steps_to_the_first_token"].items(), strict=True):
        for row, (waits, colour) in enumerate(zip(servers.values(), (ORANGE, GREEN, BLUE), strict=True)):
            before = [waits[:n].count(each) for n, each in enumerate(waits)]
            places = [row + 0.1 * ((n + 1) // 2) * (-1) ** n for n in before]
            ax.plot(waits, places, "o", color=colour, alpha=0.55, markersize=5)
            ax.plot([median(waits)] * 2, [row - 0.45, row + 0.45], "-", color=INK, linewidth=1.6)
            ax.annotate(
                f"{median(waits):g}", (median(waits), row - 0.45), xytext=(4, -7), textcoords="offset points", size=8.5
            )
        ax.set_yticks(
            range(len(servers)), [name.replace(", ", ",\n").replace("with ", "with\n", 1) for name in servers]
        )
        ax.set(ylim=(len(servers) - 0.4, -0.6), title=kind, xlim=(0, None))
        ax.tick_params(axis="y", labelsize=8.5)
    panels[-1].set_xlabel("steps from a request's arrival to its first token")
    return figure


@cache
def _trace(kind: str) -> Sequence[Any]:
    return make_trace(kind, SEED)


@cache
def _served(kind: str, other: str) -> dict[str, Any]:
    """Serve a trace; by step the blocks of requests, their tokens, the requests; by request the steps of its events."""
    trace, module = _trace(kind), solution_module("13", other)
    watched: list[Watched] = []
    blocks = module.BLOCKS

    def watch(num_blocks: int, block_size: int) -> Watched:
        watched.append(Watched(blocks(num_blocks, block_size), num_blocks, block_size))
        return watched[-1]

    module.BLOCKS = watch  # type: ignore[attr-defined]
    server = module.Server(SPEC, **LIMITS[kind])
    (seen,) = watched
    server.plan, server.advance = seen.noting(server.plan), seen.noting_tokens(server.advance)
    found = serve(server, trace, SPEC, **LIMITS[kind], probe=False)
    module.BLOCKS = blocks  # type: ignore[attr-defined]
    if len(seen.held) != found.steps:
        raise ValueError("a step without a request has no plan: take another trace, or put it in")
    return {
        "blocks": seen.num_blocks,
        "block_size": seen.block_size,
        "in_time": found.in_time,
        "held": seen.held,
        "tokens": seen.tokens,
        "requests": seen.requests,
        "gave_way": seen.gave_way,
        "first": [seen.first[each.id] - each.arrival + 1 for each in trace],
        "done": sorted(seen.done.values()),
    }


class Watched:
    """A server's blocks, with the state after each plan recorded."""

    def __init__(self, blocks: Any, num_blocks: int, block_size: int) -> None:
        self.blocks, self.num_blocks, self.block_size = blocks, num_blocks, block_size
        self.computed: dict[Any, int] = {}
        self.held: list[int] = []
        self.tokens: list[int] = []
        self.requests: list[int] = []
        self.gave_way: list[int] = []
        self.first: dict[Any, int] = {}
        self.done: dict[Any, int] = {}
        self.planning = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blocks, name)

    def allocate(self, seq_id: Any, token_ids: list[int]) -> list[int]:
        """Allocate, and note that the request has blocks from now on."""
        table: list[int] = self.blocks.allocate(seq_id, token_ids)
        self.computed[seq_id] = 0
        return table

    def free(self, seq_id: Any) -> None:
        """Free, and note why: no request finishes while a step is planned, so one that is freed then is preempted."""
        self.blocks.free(seq_id)
        del self.computed[seq_id]
        if self.planning:
            self.gave_way.append(len(self.held))
        else:
            self.done[seq_id] = len(self.held) - 1

    def noting(self, plan: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        """Return `plan`, with the state after each of its plans recorded."""

        def noted() -> dict[str, Any]:
            self.planning = True
            made = plan()
            self.planning = False
            for piece in made["work"]:
                self.computed[piece["id"]] = piece["start"] + len(piece["tokens"])
            self.held.append(self.num_blocks - self.blocks.num_free_blocks())
            self.tokens.append(len(self._places()))
            self.requests.append(len(self.computed))
            return made

        return noted

    def noting_tokens(self, advance: Callable[[dict[Any, int]], Any]) -> Callable[[dict[Any, int]], Any]:
        """Return `advance`, with the step of each request's first token recorded."""

        def noted(sampled: dict[Any, int]) -> Any:
            for each in sampled:
                self.first.setdefault(each, len(self.held) - 1)
            return advance(sampled)

        return noted

    def _places(self) -> set[tuple[int, int]]:
        """The places that hold a token of a request; a shared one counts once."""
        return {
            (self.blocks.block_table(each)[at // self.block_size], at % self.block_size)
            for each, end in self.computed.items()
            for at in range(end)
        }


def draw_blocks(data: dict[str, Any]) -> Figure:
    """Draw the requests that are done over the steps; below, for each server, its blocks and what tokens fill."""
    servers, looks = data["servers"], [(ORANGE, "--"), (GREEN, "-."), (BLUE, "-")]
    longest = max(len(server["held"]) for server in servers)
    figure, (top, *panels) = plt.subplots(4, 1, figsize=(5.0, 8.2), sharex=True, height_ratios=[1.5, 1, 1, 1])
    figure.get_layout_engine().set(h_pad=0.08)  # titles stay clear of the upper edge
    _draw_done(top, data, looks)
    for ax, server, (colour, _) in zip(panels, servers, looks, strict=True):
        steps = range(len(server["held"]))
        ax.step(steps, server["held"], where="post", color=colour, linestyle="-", label="blocks of requests")
        filled = [tokens / server["block_size"] for tokens in server["tokens"]]
        ax.fill_between(steps, filled, step="post", color=colour, alpha=0.3, linewidth=0, label="filled by tokens")
        if server["gave_way"]:
            ax.plot(
                server["gave_way"],
                [server["blocks"] + 2.2] * len(server["gave_way"]),
                "v",
                color=INK,
                markersize=5,
                label="preempted",
            )
        ax.axhline(server["blocks"], color=INK, linestyle=":", linewidth=1)
        ax.axvline(data["last_arrival"], color=MUTED, linestyle="--", linewidth=1)
        ax.set_title(server["name"])
        ax.set(ylabel="blocks", ylim=(0, server["blocks"] + 4), yticks=[0, 10, server["blocks"]])
        ax.legend(loc="lower left", fontsize=8.5, ncols=3, columnspacing=1.0, handlelength=1.6)
    panels[-1].set(xlabel="step", xlim=(0, longest))
    return figure


def _draw_done(ax: Axes, data: dict[str, Any], looks: list[tuple[str, str]]) -> None:
    horizon = data["last_arrival"]
    for server, (colour, dash) in zip(data["servers"], looks, strict=True):
        steps = [0, *server["done"]]
        ax.step(steps, range(len(steps)), where="post", color=colour, linestyle=dash, label=server["name"])
        ax.plot(horizon, server["in_time"], "o", color=colour)
    for in_time, (dx, dy, side) in zip(
        sorted({server["in_time"] for server in data["servers"]}), [(7, -10, "left"), (-7, 4, "right")], strict=True
    ):
        ax.annotate(
            f"{in_time} in time", (horizon, in_time), xytext=(dx, dy), textcoords="offset points", size=8.5, ha=side
        )
    ax.axvline(horizon, color=MUTED, linestyle="--", linewidth=1)
    ax.annotate("the last\nrequest comes", (horizon, 1), xytext=(4, 0), textcoords="offset points", size=8.5)
    ax.set(title=f"requests done, of {data['requests']}", ylim=(0, data["requests"] + 1), yticks=[0, 10, 20])
    ax.legend(loc="upper left", fontsize=8.5)


FIGURES = {
    "13_rates": Recipe(rates_data, draw_rates),
    "13_batching": Recipe(batching_data, draw_batching),
    "13_states": Recipe(states_data, draw_states),
    "13_blocks": Recipe(blocks_data, draw_blocks),
    "13_waiting": Recipe(waiting_data, draw_waiting),
}
