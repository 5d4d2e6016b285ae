"""Chapter 11's timeline: replays a run's operations with given speeds of arithmetic and links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
    """The timeline of the ranks' operations in a run with `send_recv`, one list per rank.

    A transfer begins when sender and receiver have asked for it and the sender's link is free; it computes nothing and
    stops nobody. Only products of matrices take time.

    Raises:
        ValueError: the operations are of ranks that get stuck, or call `all_gather` or `all_to_all`.
    """
    return _Replay(operations, flops_a_unit, bytes_a_unit).run()


class _Replay:
    def __init__(self, operations: Sequence[Sequence[Operation]], flops_a_unit: float, bytes_a_unit: float) -> None:
        self.operations, self.flops_a_unit, self.bytes_a_unit = operations, flops_a_unit, bytes_a_unit
        n = len(operations)
        self.now, self.flops, self.place = [0.0] * n, [0] * n, [0] * n
        self.link_free = [0.0] * n
        self.sends: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
        self.receives: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
        self.done: dict[tuple[int, int], float] = {}  # (rank, transfer): when its latest part is over
        self.open: dict[tuple[int, int], int] = defaultdict(int)  # parts that are not matched yet
        self.spans: list[list[Span]] = [[] for _ in operations]
        self.transfers: list[Transfer] = []

    def run(self) -> Timeline:
        moved = True
        while moved:
            moved = False
            for rank in range(len(self.operations)):
                while self.place[rank] < len(self.operations[rank]) and self.step(rank):
                    moved = True
        if any(self.place[rank] < len(self.operations[rank]) for rank in range(len(self.operations))):
            raise ValueError("the ranks get stuck, or call what is no send_recv")
        return Timeline(self.spans, self.transfers)

    def step(self, rank: int) -> bool:
        """Let a rank do its next operation; False where it must wait for another rank's first."""
        operation = self.operations[rank][self.place[rank]]
        key = (rank, operation.transfer)
        if operation.kind == "waits" and (self.open[key] or key not in self.done):
            return False
        self.compute(rank, operation.flops)
        if operation.kind == "asks":
            self.ask(rank, operation)
        elif operation.kind == "waits" and self.done[key] > self.now[rank]:
            self.spans[rank].append(Span("waits", self.now[rank], self.done[key]))
            self.now[rank] = self.done[key]
        self.place[rank] += 1
        return True

    def compute(self, rank: int, flops: int) -> None:
        if flops > self.flops[rank]:
            end = self.now[rank] + (flops - self.flops[rank]) / self.flops_a_unit
            self.spans[rank].append(Span("computes", self.now[rank], end))
            self.now[rank], self.flops[rank] = end, flops

    def ask(self, rank: int, operation: Operation) -> None:
        if operation.to is not None:
            self.open[rank, operation.transfer] += 1
            self.sends[rank, operation.to].append((self.now[rank], operation.transfer, operation.sends))
            self.match(rank, operation.to)
        if operation.from_ is not None:
            self.open[rank, operation.transfer] += 1
            self.receives[operation.from_, rank].append((self.now[rank], operation.transfer))
            self.match(operation.from_, rank)

    def match(self, sender: int, receiver: int) -> None:
        sends, receives = self.sends[sender, receiver], self.receives[sender, receiver]
        while sends and receives:
            (sent, its, n_bytes), (asked, other) = sends.pop(0), receives.pop(0)
            start = max(sent, asked, self.link_free[sender])
            end = start + n_bytes / self.bytes_a_unit
            self.link_free[sender] = end
            if sender != receiver:
                self.transfers.append(Transfer(sender, receiver, start, end))
            for key in ((sender, its), (receiver, other)):
                self.open[key] -= 1
                self.done[key] = max(self.done.get(key, 0.0), end)
