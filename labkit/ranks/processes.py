"""Ranks as processes on this machine, over torch.distributed and gloo, with the interface of `labkit.ranks.comm`."""

from __future__ import annotations

import datetime
import logging
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, start_processes

from labkit.meters.allocation import AllocationMeter
from labkit.ranks.comm import Traffic
from labkit.suite.forked import start_server

WAIT_SECONDS = 300.0
"""How long a rank waits for one message: gloo cannot tell ranks that wait in vain from slow ones."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class RankFailed(RuntimeError):
    """A rank's process raised, or ended; the message names the rank and the reason."""


@dataclass
class RankResult:
    """What one rank returned, sent and received, and its peak memory, its arguments included."""

    tensors: list[torch.Tensor]
    traffic: Traffic
    peak_bytes: int


def run_processes(
    file: Path,
    function: str,
    options: dict[str, Any],
    arguments: Sequence[Sequence[torch.Tensor]],
    wait_seconds: float = WAIT_SECONDS,
) -> list[RankResult]:
    """Call `function(comm, *arguments[rank], **options)`, a function of `file`, in one process for each rank.

    Raises:
        RankFailed: a process raised or ended, or waited longer than `wait_seconds` for a message.
    """
    start_server(("torch", __name__))  # forked from this process, a rank could inherit a lock that a thread holds here
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder, ranks = Path(name), range(len(arguments))
        torch.save([list(given) for given in arguments], folder / "arguments.pt")
        job = (file, function, options, len(ranks), folder, wait_seconds)
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it warns of each rank that it ends
        running = start_processes(_run_rank, job, len(ranks), join=False, daemon=True, start_method="forkserver")
        try:
            while not running.join():
                pass
        except ProcessExitedException:  # the others have been ended
            raise RankFailed(_cause(running.processes, folder)) from None
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in ranks]


def load_function(file: Path, name: str) -> Callable[..., Any]:
    """A function of a file that is run as a separate module; raises KeyError if it has none."""
    return runpy.run_path(str(file))[name]


class ProcessHandle:
    """A transfer over gloo: see `labkit.ranks.comm.Handle`."""

    def __init__(
        self, works: list[Any], tensors: tuple[torch.Tensor, ...], sent: Sequence[torch.Tensor], seconds: float
    ) -> None:
        self.tensors = tensors
        self._works, self._seconds = works, seconds
        self._sent = sent  # gloo reads it until `wait` returns

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Return when everything is sent and received."""
        for work in self._works:
            try:
                work.wait(datetime.timedelta(seconds=self._seconds))
            except RuntimeError as error:
                if "timed out" not in str(error).lower() and "timeout" not in str(error).lower():
                    raise
                late = f"no message within {self._seconds:g} s: ranks that wait for one another never end"
                raise TimeoutError(late) from None
        return self.tensors


class ProcessComm:
    """A rank's connection with the others over torch.distributed: see `labkit.ranks.comm.Comm`."""

    def __init__(self, rank: int, world_size: int, wait_seconds: float = WAIT_SECONDS) -> None:
        self.rank, self.world_size, self._wait_seconds = rank, world_size, wait_seconds
        self.traffic = Traffic()

    def send_recv(self, tensors: Sequence[torch.Tensor], to: int | None, from_: int | None) -> ProcessHandle:
        """Begin to send to one rank and to receive from one."""
        buffers: tuple[torch.Tensor, ...] = ()
        if from_ is not None:
            buffers = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors)
        if self.rank in (to, from_):
            if to != from_:
                raise ValueError("a message to oneself is sent and received in one call")
            for buffer, x in zip(buffers, tensors, strict=True):
                buffer.copy_(x)
            return ProcessHandle([], buffers, (), 0.0)
        sent = [x.contiguous() for x in tensors] if to is not None else []
        works = [dist.isend(x, to) for x in sent] + [dist.irecv(x, from_) for x in buffers]
        self.traffic.messages += len(sent)
        self.traffic.sent_bytes += sum(x.nbytes for x in sent)
        self.traffic.received_bytes += sum(x.nbytes for x in buffers)
        return ProcessHandle(works, buffers, sent, self._wait_seconds)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, rank by rank."""
        return self.all_to_all([tensor] * self.world_size)

    def all_to_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that all ranks send to this one, rank by rank."""
        received = list(tensors)
        handles = {}
        for step in range(1, self.world_size):
            to, from_ = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
            handles[from_] = self.send_recv([tensors[to]], to, from_)
        for rank, handle in handles.items():
            (received[rank],) = handle.wait()
        return received


def _run_rank(
    rank: int, file: Path, function: str, options: dict[str, Any], world_size: int, folder: Path, wait_seconds: float
) -> None:
    """A rank's process."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(1)
    try:
        store = (folder / "store").as_uri()
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        arguments = torch.load(folder / "arguments.pt")[rank]
        comm = ProcessComm(rank, world_size, wait_seconds)
        called = load_function(file, function)
        dist.barrier()
        with torch.no_grad(), AllocationMeter() as memory:
            result = called(comm, *arguments, **options)
        dist.barrier()  # no rank leaves while another still reads from it
        tensors = list(result) if isinstance(result, tuple | list) else [result]
        peak_bytes = memory.peak_bytes + sum(x.nbytes for x in arguments)
        torch.save(RankResult(tensors, comm.traffic, peak_bytes), folder / f"{rank}.pt")
    except BaseException as error:
        (folder / f"{rank}.txt").write_text(_described(file, error), encoding="utf-8")
        os._exit(1)
    os._exit(0)  # gloo's threads need not be waited for


def _described(file: Path, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = f" in line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    if isinstance(error, NotImplementedError):
        return f"not implemented yet{where}"
    return f"{type(error).__name__}: {error}{where}"


def _cause(processes: Sequence[Any], folder: Path) -> str:
    """Why a run failed. A failing rank breaks its neighbours' connections, and one of those may be reported first."""
    causes = []
    for rank, process in enumerate(processes):
        if process.exitcode in (0, -signal.SIGTERM):  # SIGTERM: ended for another's failure, perhaps while it wrote
            continue
        message = folder / f"{rank}.txt"
        if message.exists():
            causes.append(f"rank {rank}: {message.read_text(encoding='utf-8')}")
        else:
            causes.append(f"rank {rank} ended with status {process.exitcode}")
    return min(causes, key=lambda cause: "gloo" in cause, default="the ranks were ended by SIGTERM")
