"""Chapter 13's figure: what three servers do with the blocks of one cache, step by step.

Lab 13's solution and its two other servers are run, so the data can be made again only where `solutions/` is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import answer_module
from labstaff.answers.board import REFERENCES
from labstaff.figures import BLUE, GREEN, INK, MUTED, ORANGE, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.serving.trace import Request

KIND, SEED = "chat", 0
"""One of the board's own traces."""


def blocks_data() -> dict[str, Any]:
    """The board's three servers on one trace: see `_served`."""
    from labkit.serving.trace import make_trace

    trace = make_trace(KIND, SEED)
    servers = [{"name": name, **_served(other, trace)} for name, other in REFERENCES.items()]
    return {"trace": KIND, "requests": len(trace), "last_arrival": trace[-1].arrival, "servers": servers}


def _served(other: str, trace: Sequence[Request]) -> dict[str, Any]:
    """By step, once it is planned: blocks of requests, the tokens in them, and the requests; and who gave way when."""
    from labkit.serving.engine import serve
    from labkit.serving.model import SPEC
    from labkit.serving.trace import LIMITS

    module = answer_module("13", other)
    watched: list[Watched] = []
    blocks = module.BLOCKS

    def watch(num_blocks: int, block_size: int) -> Watched:
        watched.append(Watched(blocks(num_blocks, block_size), num_blocks, block_size))
        return watched[-1]

    module.BLOCKS = watch  # type: ignore[attr-defined]
    server = module.Server(SPEC, **LIMITS[KIND])
    (seen,) = watched
    server.plan = seen.noting(server.plan)
    found = serve(server, trace, SPEC, **LIMITS[KIND], probe=False)
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
    }


class Watched:
    """A server's blocks, and what is so after each plan."""

    def __init__(self, blocks: Any, num_blocks: int, block_size: int) -> None:
        self.blocks, self.num_blocks, self.block_size = blocks, num_blocks, block_size
        self.computed: dict[Any, int] = {}
        self.held: list[int] = []
        self.tokens: list[int] = []
        self.requests: list[int] = []
        self.gave_way: list[int] = []
        self.planning = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blocks, name)

    def allocate(self, seq_id: Any, token_ids: list[int]) -> list[int]:
        """As the blocks do it: the request has some from now on."""
        table: list[int] = self.blocks.allocate(seq_id, token_ids)
        self.computed[seq_id] = 0
        return table

    def free(self, seq_id: Any) -> None:
        """As the blocks do it. While a step is planned nobody is done: who is freed then gives way."""
        self.blocks.free(seq_id)
        del self.computed[seq_id]
        if self.planning:
            self.gave_way.append(len(self.held))

    def noting(self, plan: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        """The same `plan`, each of which is noted."""

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

    def _places(self) -> set[tuple[int, int]]:
        """The places that hold a token of somebody's; a shared one counts once."""
        return {
            (self.blocks.block_table(each)[at // self.block_size], at % self.block_size)
            for each, end in self.computed.items()
            for at in range(end)
        }


def draw_blocks(data: dict[str, Any]) -> Figure:
    """Draw a panel for each server: blocks that belong to requests, and how many of them tokens fill."""
    import matplotlib.pyplot as plt

    servers = data["servers"]
    figure, panels = plt.subplots(len(servers), 1, figsize=(5.0, 6.6), sharex=True, sharey=True)
    for ax, server, colour in zip(panels, servers, (ORANGE, GREEN, BLUE), strict=True):
        steps = range(len(server["held"]))
        ax.step(steps, server["held"], where="post", color=colour, linestyle="-", label="blocks of requests")
        filled = [tokens / server["block_size"] for tokens in server["tokens"]]
        ax.fill_between(steps, filled, step="post", color=colour, alpha=0.3, linewidth=0, label="filled by tokens")
        if server["gave_way"]:
            ax.plot(server["gave_way"], [server["blocks"] + 1.2] * len(server["gave_way"]), "v", color=INK,
                    markersize=5, label="gives way")  # fmt: skip
        ax.axhline(server["blocks"], color=INK, linestyle=":", linewidth=1)
        ax.axvline(data["last_arrival"], color=MUTED, linestyle="--", linewidth=1)
        ax.set_title(f"{server['name']}: {server['in_time']} of {data['requests']} in time, {len(steps)} steps")
        ax.set(ylabel="blocks", ylim=(0, server["blocks"] + 3), yticks=[0, 10, server["blocks"]])
        ax.legend(loc="lower left", fontsize=8, ncols=3)
    panels[-1].set(xlabel="step", xlim=(0, max(len(server["held"]) for server in servers)))
    return figure


FIGURES = {"13_blocks": Recipe(blocks_data, draw_blocks)}
