"""Latency in steps, request by request, and how many requests were served well enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from labkit.serving.drive import Active, Drive
from labkit.serving.locations import Locations
from labkit.serving.player import Request


class Latency(NamedTuple):
    """Steps from a request's arrival to its first token, and steps per further token (0 if there is none)."""

    first: int
    each: Fraction


def latencies(
    scheduler: Any, trace: Sequence[Request], num_blocks: int, block_size: int, max_tokens: int
) -> dict[Any, Latency]:
    """Run `scheduler` on a trace without a model, as `serve_plans` does; the latency of each request, by its id.

    Raises:
        AssertionError: a plan is wrong.
    """
    drive = _Timed(scheduler, trace, Locations(num_blocks, block_size), max_tokens)
    drive.run(probe=False)
    found = {}
    for request in trace:
        first, *more = drive.steps[request.id]
        each = Fraction(more[-1] - first, len(more)) if more else Fraction(0)
        found[request.id] = Latency(first - request.arrival + 1, each)
    return found


def goodput(found: Mapping[Any, Latency], first: int, each: float) -> int:
    """Requests whose first token came within `first` steps, and the others within `each` steps per token."""
    return sum(one.first <= first and one.each <= each for one in found.values())


class _Timed(Drive):
    """A drive that notes in which steps each request gets its tokens."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: dict[Any, list[int]] = {}

    def check_token(self, one: Active, token: int, step: int) -> None:
        """Note the step; without a model every token is right."""
        self.steps.setdefault(one.request.id, []).append(step)
