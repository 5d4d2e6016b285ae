"""Chapter 11's timeline: replays a run's operations with given speeds of arithmetic and links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.ranks.threads import Operation


@dataclass(frozen=True)
class Span:
    """What a rank does between two times: "computes" or "waits"."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Transfer:
    """A message in transit from one rank to another."""

    sender: int
    receiver: int
    start: float
    end: float


@dataclass
class Timeline:
    """Each rank's spans, without gaps, and all transfers; times in the units that the speeds imply."""

    spans: list[list[Span]]
    transfers: list[Transfer]

    @property
    def end(self) -> float:
        """The time at which the last rank ends."""
        return max((span.end for spans in self.spans for span in spans), default=0.0)


def timeline(operations: Sequence[Sequence[Operation]], flops_a_unit: float, bytes_a_unit: float) -> Timeline:
    """The timeline of the ranks' operations in a run with `send_recv` that has ended, one list per rank.

    A transfer begins when sender and receiver have asked for it and the sender's link is free; it computes nothing and
    stops nobody. Only products of matrices take time.
    """
    replay = _Replay(operations, flops_a_unit, bytes_a_unit)
    running = [replay.run(rank) for rank in range(len(operations))]
    while running:
        running = [rank for rank in running if next(rank, None)]
    return Timeline(replay.spans, replay.transfers)


@dataclass
class _Part:
    """A rank's part of a transfer, as sender or receiver: when it asked for it, and when it is over."""

    asked: float
    n_bytes: int = 0
    end: float | None = None


class _Replay:
    def __init__(self, operations: Sequence[Sequence[Operation]], flops_a_unit: float, bytes_a_unit: float) -> None:
        self.operations, self.flops_a_unit, self.bytes_a_unit = operations, flops_a_unit, bytes_a_unit
        self.link_free = [0.0] * len(operations)
        self.sends: dict[tuple[int, int], list[_Part]] = defaultdict(list)
        self.receives: dict[tuple[int, int], list[_Part]] = defaultdict(list)
        self.spans: list[list[Span]] = [[] for _ in operations]
        self.transfers: list[Transfer] = []

    def run(self, rank: int) -> Iterator[bool]:
        """A rank's operations; yields while it must wait for another rank's."""
        now, flops, parts = 0.0, 0, defaultdict[int, list[_Part]](list)
        for operation in self.operations[rank]:
            mine = parts[operation.transfer]
            while operation.kind == "waits" and any(part.end is None for part in mine):
                yield True
            if operation.flops > flops:
                end = now + (operation.flops - flops) / self.flops_a_unit
                self.spans[rank].append(Span("computes", now, end))
                now, flops = end, operation.flops
            if operation.kind == "asks" and operation.to is not None:
                mine.append(self.ask(self.sends, rank, operation.to, _Part(now, operation.sends)))
            if operation.kind == "asks" and operation.from_ is not None:
                mine.append(self.ask(self.receives, operation.from_, rank, _Part(now)))
            end = max((part.end or 0.0 for part in mine), default=0.0)
            if operation.kind == "waits" and end > now:
                self.spans[rank].append(Span("waits", now, end))
                now = end

    def ask(self, queue: dict[tuple[int, int], list[_Part]], sender: int, receiver: int, part: _Part) -> _Part:
        """Add a part of a transfer to `queue`, and begin the transfers of which both parts are there."""
        queue[sender, receiver].append(part)
        sends, receives = self.sends[sender, receiver], self.receives[sender, receiver]
        while sends and receives:
            sent, received = sends.pop(0), receives.pop(0)
            start = max(sent.asked, received.asked, self.link_free[sender])
            sent.end = received.end = self.link_free[sender] = start + sent.n_bytes / self.bytes_a_unit
            if sender != receiver:
                self.transfers.append(Transfer(sender, receiver, start, sent.end))
        return part
