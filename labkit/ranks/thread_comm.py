"""The connection of a rank that is a thread: see `labkit.ranks.comm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from labkit.ranks.comm import Deadlock, checked_rank, checked_tensors, described
from labkit.ranks.messages import Exchange, Message, fill, line_of_caller, unseen_copies


@dataclass
class Call:
    """A collective call, and the tensors that each rank has brought."""

    name: str
    brought: dict[int, list[torch.Tensor]] = field(default_factory=dict)


class Turns(Protocol):
    """What a connection needs from its run."""

    exchange: Exchange

    def wait(self, rank: int, line: int, messages: Sequence[Message]) -> None:
        """Return when all of `messages` are matched; let others run until then."""

    def meet(self, rank: int, name: str, brought: list[torch.Tensor]) -> Call:
        """Return when all ranks have reached this call."""

    def note(self, rank: int, kind: str, **more: Any) -> None:
        """Record a rank's operation."""


class ThreadHandle:
    """A transfer of one rank: see `labkit.ranks.comm.Handle`."""

    def __init__(
        self, comm: ThreadComm, number: int, messages: list[Message], buffers: tuple[torch.Tensor, ...]
    ) -> None:
        self.tensors = buffers
        self._comm, self._number, self._messages = comm, number, messages

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Return when everything is sent and received."""
        if self._messages:
            self._comm._finish(self._number, self._messages)
            self._messages = []
        return self.tensors


class ThreadComm:
    """A rank's connection with the others in a run of `run_ranks`: see `labkit.ranks.comm.Comm`."""

    def __init__(self, world: Turns, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._world, self._rank = world, rank
        self._loose: list[Message] = []
        self._n_transfers = 0

    def send_recv(self, tensors: Sequence[torch.Tensor], to: int | None, from_: int | None) -> ThreadHandle:
        """Begin to send to one rank and to receive from one."""
        given = checked_tensors("send_recv", tensors)
        world, line = self._world, line_of_caller()
        receiver = checked_rank("to", to, self.world_size)
        sender = checked_rank("from_", from_, self.world_size)
        messages: list[Message] = []
        buffers: tuple[torch.Tensor, ...] = ()
        if receiver is not None:
            messages.append(Message(self._rank, receiver, True, given, line))
        if sender is not None:
            buffers = world.exchange.buffers(self._rank, given)
            messages.append(Message(self._rank, sender, False, buffers, line))
        for message in messages:
            world.exchange.post(message)
        self._loose += messages
        number, self._n_transfers = self._n_transfers, self._n_transfers + 1
        leaving = sum(x.nbytes for x in given) if receiver not in (None, self._rank) else 0
        world.note(self._rank, "asks", transfer=number, to=receiver, from_=sender, sends=leaving)
        return ThreadHandle(self, number, messages, buffers)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, rank by rank; its own is the given tensor, not a copy."""
        (given,) = checked_tensors("all_gather", [tensor])
        brought = unseen_copies([given])
        others = self._exchange("all_gather", brought, [given] * self.world_size, lambda theirs: theirs[0])
        return [given if rank == self._rank else others[rank] for rank in range(self.world_size)]

    def all_to_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that all ranks send to this one, rank by rank; its own is the given tensor, not a copy."""
        given = checked_tensors("all_to_all", tensors, self.world_size)
        if len({described([x]) for x in given}) > 1:
            raise ValueError(f"all_to_all takes tensors of one shape and dtype, got {described(given)}")
        others = self._exchange("all_to_all", unseen_copies(given), given, lambda theirs: theirs[self._rank])
        return [given[rank] if rank == self._rank else others[rank] for rank in range(self.world_size)]

    def _exchange(
        self,
        name: str,
        brought: list[torch.Tensor],
        given: Sequence[torch.Tensor],
        mine: Callable[[list[torch.Tensor]], torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        world, me = self._world, self._rank
        others = [rank for rank in range(self.world_size) if rank != me]
        leaving = sum(given[rank].nbytes for rank in others)
        number, self._n_transfers = self._n_transfers, self._n_transfers + 1
        world.note(me, "asks", transfer=number, sends=leaving)
        call = world.meet(me, name, brought)
        came = {}
        for rank in others:
            (came[rank],) = world.exchange.buffers(me, [given[rank]])
            fill([came[rank]], [mine(call.brought[rank])])
            world.exchange.count(me, rank, [given[rank]])
        world.note(me, "waits", transfer=number)
        return came

    def _finish(self, number: int, messages: list[Message]) -> None:
        world = self._world
        world.note(self._rank, "waits", transfer=number)
        world.wait(self._rank, line_of_caller(), messages)
        for message in messages:
            message.refuse_changes()
            if not message.is_send:
                fill(message.tensors, message.content)
            message.tensors, message.content = (), []
            self._loose.remove(message)

    def refuse_loose_ends(self) -> None:
        """Raise if the rank returns without having waited for everything."""
        for message in self._loose:
            what = f"sends to rank {message.other}" if message.is_send else f"receives from rank {message.other}"
            raise Deadlock(
                f"rank {self._rank} returned without wait() for what it {what} (send_recv in line {message.line})\n"
                "Until wait() nothing is sure to have left, and buffers hold what they like"
            )
