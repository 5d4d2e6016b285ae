"""The interface through which ranks exchange tensors, as threads or as processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class Handle(Protocol):
    """A transfer under way.

    `tensors` are the buffers that are being received into, empty where nothing is: until `wait` has returned nobody
    may read or write them, nor write into what is being sent.
    """

    tensors: tuple[torch.Tensor, ...]

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Wait until everything is sent and received; returns the received tensors in the order of sending."""


class Comm(Protocol):
    """One rank's connection with the others, which are numbered from 0 to `world_size` − 1."""

    rank: int
    world_size: int

    def send_recv(self, tensors: Sequence[torch.Tensor], to: int | None, from_: int | None) -> Handle:
        """Begin to send tensors to rank `to`, and to receive others of the same shapes and dtypes from rank `from_`.

        It returns at once; the handle's `wait()` waits for both. A message is on its way when its receiver has asked
        for it too: a send alone, waited for, waits for that. Messages from one rank to another arrive in the order in
        which they were sent. None leaves out one of the two: with `to=None` the tensors only say what is expected.
        """

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, rank by rank, once all have called this; all are of one shape and dtype.

        Each rank's tensor goes to every other rank, and all of them are here at once.
        """

    def all_to_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that all ranks send to this one, rank by rank, once all have called this.

        Of `tensors`, one for each rank and all of one shape and dtype, the one at place r goes to rank r.
        """


class Deadlock(RuntimeError):
    """Ranks are in a deadlock or break a rule of `Comm`; the message names ranks and lines."""


@dataclass
class Traffic:
    """The traffic of one rank with others; a tensor that stays with a rank does not count.

    `messages` counts tensors sent. `held_bytes` is the most that lay in receive buffers at once, from the call that
    asks for them until the last reader lets go.
    """

    messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    held_bytes: int = 0


def checked_tensors(name: str, tensors: object, how_many: int | None = None) -> tuple[torch.Tensor, ...]:
    """`tensors` as a tuple.

    Raises:
        TypeError: it is no list or tuple of tensors.
        ValueError: it has not `how_many`.
    """
    if not isinstance(tensors, list | tuple) or not all(isinstance(x, torch.Tensor) for x in tensors):
        raise TypeError(f"{name} takes a list or tuple of tensors, got {type(tensors).__name__}")
    if how_many is not None and len(tensors) != how_many:
        raise ValueError(f"{name} takes one tensor for each of {how_many} ranks, got {len(tensors)}")
    return tuple(tensors)


def checked_rank(name: str, rank: int | None, world_size: int) -> int | None:
    """`rank` if it is None or one of `world_size` ranks; raises ValueError otherwise."""
    if rank is None or (isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < world_size):
        return rank
    raise ValueError(f"{name}={rank} is no rank: they are numbered from 0 to {world_size - 1}")


def described(tensors: Sequence[torch.Tensor]) -> str:
    """Shapes and dtypes of tensors, for messages."""
    return ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in tensors)
