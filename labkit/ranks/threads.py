"""Ranks as threads that take turns: each runs until it must wait, so that every run is the same."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.products import ProductMeter
from labkit.ranks.comm import Deadlock, Traffic, checked_rank, checked_tensors, described
from labkit.ranks.deadlock import Waiting, explained
from labkit.ranks.messages import Exchange, Message, fill, line_of_caller, unseen_copies
from labkit.suite.limits import not_repeated

END_SECONDS = 10.0
ASK_AGAIN_SECONDS = 0.5
HANDLER_SECONDS = 0.1


@dataclass
class Operation:
    """One operation of a rank: it "asks" for a transfer, "waits" for it, or "ends"; and the FLOPs before it.

    `transfer` numbers the rank's transfers, `to` and `from_` are the other ranks, `sends` the bytes that leave.
    """

    kind: str
    flops: int
    transfer: int = -1
    to: int | None = None
    from_: int | None = None
    sends: int = 0

    @property
    def is_collective(self) -> bool:
        """Whether it requests a transfer with all ranks."""
        return self.kind == "asks" and self.to is None and self.from_ is None


@dataclass
class Ran:
    """The results and costs of a run, each a list by rank.

    `peak_bytes` are those over a rank's arguments, what it receives included; `flops` those of its matrix products,
    and `fused` the kernels that do a whole attention at once.
    """

    results: list[Any]
    traffic: list[Traffic]
    peak_bytes: list[int]
    largest_bytes: list[int]
    flops: list[int]
    fused: list[list[str]]
    operations: list[list[Operation]]


def run_ranks(function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> Ran:
    """Call `function(comm, *arguments[rank])` on a rank for each entry of `arguments`, until all have returned.

    One thread runs at a time, until it has to wait, then the next: what ranks see of one another depends on no clock.
    A transfer's numbers arrive with its `wait()`, and its buffers hold NaN until then. Autograd is off.

    Raises:
        Deadlock: ranks wait for one another in vain, or one breaks a rule of `Comm`.
        Exception: what the first rank to fail has raised.
    """
    return _World(function, arguments).run()


class _Ended(BaseException):
    """Raised in ranks that must end because the run has failed."""


class _RankMeter(AllocationMeter):
    """Meters a rank's memory and its matrix products in one pass over its operators."""

    def __init__(self) -> None:
        super().__init__()
        self.products = ProductMeter()

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.products.count(func, args)
        return super()._see(func, args, kwargs)


@dataclass
class Call:
    """A collective call, and the tensors that each rank has brought."""

    name: str
    brought: dict[int, list[torch.Tensor]] = field(default_factory=dict)


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

    def __init__(self, world: _World, rank: int, world_size: int) -> None:
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


class _World:
    def __init__(self, function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> None:
        self.function, self.arguments = function, arguments
        self.world_size = len(arguments)
        self.exchange = Exchange(self.world_size)
        self.turns = [threading.Semaphore(0) for _ in arguments]
        self.over = threading.Event()
        self.waiting: dict[int, Waiting] = {}
        self.returned: set[int] = set()
        self.failure: BaseException | None = None
        self.interrupted: BaseException | None = None
        self.running = 0
        self.calls: list[Call] = []
        self.n_calls = [0] * self.world_size
        self.meters = [_RankMeter() for _ in arguments]
        self.operations: list[list[Operation]] = [[] for _ in arguments]
        self.results: list[Any] = [None] * self.world_size
        self.threads = [
            threading.Thread(target=self.live, args=(rank,), daemon=True) for rank in range(self.world_size)
        ]

    def run(self) -> Ran:
        for thread in self.threads:
            thread.start()
        self.turns[0].release()
        try:
            while not self.over.wait(HANDLER_SECONDS):  # a signal that came to another thread is handled then
                pass
        except BaseException as error:  # a time limit, or Ctrl-C: it comes up here, and must end the ranks too
            with not_repeated():
                self.end(error)
            raise error.with_traceback(self.interrupted.__traceback__ if self.interrupted else None) from None
        self.end(None)
        if self.failure is not None:
            raise self.failure
        return Ran(
            results=self.results,
            traffic=self.exchange.traffic,
            peak_bytes=[meter.peak_bytes for meter in self.meters],
            largest_bytes=[meter.largest_bytes for meter in self.meters],
            flops=[meter.products.flops for meter in self.meters],
            fused=[meter.products.fused for meter in self.meters],
            operations=self.operations,
        )

    def end(self, why: BaseException | None) -> None:
        """End every rank: waiting ones at their next turn, a running one by an exception from outside."""
        self.failure = self.failure or why
        runs = self.threads[self.running]
        for turn in self.turns:
            turn.release()
        deadline = time.monotonic() + END_SECONDS
        for thread in self.threads:
            while thread.is_alive() and time.monotonic() < deadline:
                if why is not None and thread is runs and thread.ident is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Ended))
                thread.join(ASK_AGAIN_SECONDS)

    def live(self, rank: int) -> None:
        """A rank's life."""
        self.turns[rank].acquire()
        try:
            if self.failure is None:
                comm = ThreadComm(self, rank, self.world_size)
                with torch.no_grad(), self.meters[rank]:
                    self.results[rank] = self.function(comm, *self.arguments[rank])
                comm.refuse_loose_ends()
        except _Ended as error:
            if rank == self.running:
                self.interrupted = error
        except BaseException as error:
            self.failure = self.failure or error
        self.note(rank, "ends")
        self.returned.add(rank)
        self.pass_on(rank)

    def wait(self, rank: int, line: int, messages: Sequence[Message]) -> None:
        """Return when all of `messages` are matched; let others run until then."""
        while not all(message.is_matched for message in messages):
            self.waiting[rank] = Waiting(line, tuple(messages))
            self.yield_turn(rank)

    def meet(self, rank: int, name: str, brought: list[torch.Tensor]) -> Call:
        """Return when all ranks have reached this call."""
        number, line = self.n_calls[rank], line_of_caller()
        self.n_calls[rank] += 1
        if number == len(self.calls):
            self.calls.append(Call(name))
        call = self.calls[number]
        if call.name != name:
            raise Deadlock(f"rank {rank} calls {name} (line {line}), other ranks call {call.name} at the same place")
        for other, theirs in call.brought.items():
            if described(theirs) != described(brought):
                raise Deadlock(
                    f"in {name} rank {rank} has {described(brought)} (line {line}), rank {other} {described(theirs)}"
                )
        call.brought[rank] = brought
        while len(call.brought) < self.world_size:
            absent = tuple(other for other in range(self.world_size) if other not in call.brought)
            self.waiting[rank] = Waiting(line, call=name, absent=absent)
            self.yield_turn(rank)
        return call

    def yield_turn(self, rank: int) -> None:
        """Let the next rank run that can, and come back when this one can."""
        self.pass_on(rank)
        self.turns[rank].acquire()
        if self.failure is not None:
            raise _Ended
        self.waiting.pop(rank, None)

    def pass_on(self, rank: int) -> None:
        """Give the turn to the next rank that can continue; if none can, the run has ended or is in a deadlock."""
        if self.failure is None:
            for step in range(1, self.world_size + 1):
                other = (rank + step) % self.world_size
                if other not in self.returned and self.can_go_on(other):
                    self.running = other
                    self.turns[other].release()
                    return
            if len(self.returned) < self.world_size:
                n_sent = {each: self.exchange.traffic[each].messages for each in self.returned}
                self.failure = Deadlock(explained(self.waiting, n_sent))
        self.over.set()

    def can_go_on(self, rank: int) -> bool:
        what = self.waiting.get(rank)
        if what is None:
            return True
        if what.call:
            return all(other in self.calls[self.n_calls[rank] - 1].brought for other in what.absent)
        return all(message.is_matched for message in what.messages)

    def note(self, rank: int, kind: str, **more: Any) -> None:
        self.operations[rank].append(Operation(kind, self.meters[rank].products.flops, **more))
