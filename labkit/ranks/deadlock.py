"""Explains a deadlock: which rank waits for which, and the usual cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.ranks.messages import Message

SENDS_FIRST = "every rank sends before it receives, and none is there to receive: let send_recv do both, then wait()"
ONE_WAY = "`to` and `from_` do not fit: who sends to the next rank must receive from the one before"


@dataclass(frozen=True)
class Waiting:
    """What a rank waits for: unmatched messages, or the other ranks in a collective call."""

    line: int
    messages: tuple[Message, ...] = ()
    call: str = ""
    absent: tuple[int, ...] = ()
    """Of a call that all must make: who has not."""

    @property
    def on(self) -> tuple[int, ...]:
        """The ranks that must do something first."""
        return tuple(message.other for message in self.messages if not message.is_matched) + self.absent


def explained(waiting: Mapping[int, Waiting], returned: Mapping[int, int]) -> str:
    """Why no rank can continue: a line per rank, and the usual cause. `returned`: messages sent by ended ranks."""
    lines = ["the ranks wait for one another, and nothing is under way (a deadlock):"]
    for rank, what in sorted(waiting.items()):
        lines.append(f"  rank {rank} waits in line {what.line} {_for(what)}")
    for rank, n_messages in sorted(returned.items()):
        lines.append(f"  rank {rank} has returned, after sending {n_messages} tensors")
    return "\n".join([*lines, f"Usual cause: {_cause(waiting, returned)}"])


def _for(what: Waiting) -> str:
    if what.call:
        return f"in {what.call} for {_ranks(what.absent)}"
    wants = []
    for message in what.messages:
        if message.is_matched:
            continue
        if message.is_send:
            wants.append(f"until rank {message.other} receives what it sends")
        else:
            wants.append(f"for a message from rank {message.other}")
    return " and ".join(wants)


def _cause(waiting: Mapping[int, Waiting], returned: Mapping[int, int]) -> str:
    on_the_gone = [rank for what in waiting.values() for rank in what.on if rank in returned]
    unmatched = [message for what in waiting.values() for message in what.messages if not message.is_matched]
    if any(what.call for what in waiting.values()):
        return "a call that all ranks must make is not made by all, or not in the same order"
    if on_the_gone:
        return (
            f"rank {on_the_gone[0]} has left too early: every rank passes on what it holds, also where it has nothing "
            "to compute from it, and all make equally many hops"
        )
    if unmatched and all(message.is_send for message in unmatched):
        return SENDS_FIRST
    circle = _circle(waiting)
    way = f" ({' → '.join(map(str, circle))})" if circle else ""
    return ONE_WAY + way


def _circle(waiting: Mapping[int, Waiting]) -> list[int]:
    """Ranks that wait for each other in a circle, with the first again at the end."""
    for start in waiting:
        path = [start]
        while path[-1] in waiting and waiting[path[-1]].on:
            following = waiting[path[-1]].on[0]
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)
    return []


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
