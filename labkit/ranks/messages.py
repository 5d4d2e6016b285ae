"""Messages between ranks that are threads: sends and receives are matched, checked and counted."""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from labkit.meters.torch_private import without_modes
from labkit.ranks.comm import Deadlock, Traffic, described

HERE = str(Path(__file__).parent)


@dataclass(eq=False)
class Message:
    """A requested send or receive; `other` is the rank that it goes to or comes from.

    `content` is what a receive will get: a copy, made when both sides have asked, that no meter sees.
    """

    rank: int
    other: int
    is_send: bool
    tensors: tuple[torch.Tensor, ...]
    line: int
    versions: tuple[int, ...] = ()
    is_matched: bool = False
    content: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = versions_of(self.tensors)

    def refuse_changes(self) -> None:
        """Raise Deadlock if the rank has changed a tensor that is still being sent or received."""
        if versions_of(self.tensors) == self.versions:
            return
        what = "what it was sending" if self.is_send else "a buffer it was receiving into"
        raise Deadlock(
            f"rank {self.rank} changed {what} before wait() had returned (send_recv in line {self.line})\n"
            "A transfer reads and writes its tensors until wait(): work on others meanwhile"
        )


@dataclass
class Exchange:
    """All messages under way between ranks, and what each rank has sent and received."""

    world_size: int
    traffic: list[Traffic] = field(default_factory=list)
    open: dict[tuple[int, int, bool], deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    """Messages whose other side has not asked yet, by sender, receiver, and whether they are sends."""

    def __post_init__(self) -> None:
        self.traffic = [Traffic() for _ in range(self.world_size)]
        self._held = [0] * self.world_size

    def post(self, message: Message) -> None:
        """Post a message, and match it with the first one waiting on the other side."""
        sender, receiver = (message.rank, message.other) if message.is_send else (message.other, message.rank)
        others = self.open[sender, receiver, not message.is_send]
        if not others:
            self.open[sender, receiver, message.is_send].append(message)
            return
        sent, wanted = (message, others.popleft()) if message.is_send else (others.popleft(), message)
        if described(sent.tensors) != described(wanted.tensors):
            raise Deadlock(
                f"rank {receiver} expects {described(wanted.tensors)} from rank {sender} (line {wanted.line}), "
                f"which sends {described(sent.tensors)} (line {sent.line})"
            )
        wanted.content = unseen_copies(sent.tensors)
        sent.is_matched = wanted.is_matched = True
        if sender != receiver:
            self.count(sender, receiver, sent.tensors)

    def count(self, sender: int, receiver: int, tensors: Sequence[torch.Tensor]) -> None:
        """Note that tensors went from one rank to another."""
        n_bytes = sum(x.nbytes for x in tensors)
        self.traffic[sender].messages += len(tensors)
        self.traffic[sender].sent_bytes += n_bytes
        self.traffic[receiver].received_bytes += n_bytes

    def buffers(self, rank: int, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Tensors of NaN to receive into, which count as held by the rank until the last reference is gone.

        The rank's own thread makes them, so that its meters see them.
        """
        made = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like)
        for x in made:
            with unseen():
                x.fill_(math.nan if x.is_floating_point() else -1)
            self._hold(rank, x)
        return made

    def _hold(self, rank: int, x: torch.Tensor) -> None:
        storage, n_bytes = x.untyped_storage(), x.nbytes
        self._held[rank] += n_bytes
        self.traffic[rank].held_bytes = max(self.traffic[rank].held_bytes, self._held[rank])
        weakref.finalize(storage, self._let_go, rank, n_bytes)

    def _let_go(self, rank: int, n_bytes: int) -> None:
        self._held[rank] -= n_bytes


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hide the body from meters: a message in transit is no rank's memory and no rank's work."""
    with without_modes(), torch.no_grad():
        yield


def unseen_copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that meters do not count."""
    with unseen():
        return [x.detach().clone() for x in tensors]


def fill(buffers: Sequence[torch.Tensor], content: Sequence[torch.Tensor]) -> None:
    """Write the received data into its buffers."""
    with unseen():
        for buffer, came in zip(buffers, content, strict=True):
            buffer.copy_(came)


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """How often each tensor has been written in place."""
    return tuple(x._version for x in tensors)


def line_of_caller() -> int:
    """The line outside of this package from which it was called; 0 where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0
