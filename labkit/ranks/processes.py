"""Ranks as processes of this machine, which talk through torch.distributed and gloo: the same interface, for real."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import math
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.ranks.comm import Traffic, checked_rank, checked_tensors, described

SECONDS = 300.0
"""How long a run may last by the clock, for ranks that wait for what never comes."""
GRACE_SECONDS = 2.0
"""How long the others may still tell what became of them, once one has failed."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class RankFailed(RuntimeError):
    """A rank's process has raised, or ended, or did not end in time; the message says which and what it said."""


@dataclass
class RanProcess:
    """What ranks have returned and what that took, each a list by rank; `peak_bytes` with each rank's arguments."""

    results: list[Any]
    traffic: list[Traffic]
    peak_bytes: list[int]


@dataclass(frozen=True)
class Job:
    """A function of a file, to be called as `function(comm, *arguments, **options)`."""

    file: Path
    function: str
    options: dict[str, Any]


def run_processes(job: Job, arguments: Sequence[Sequence[torch.Tensor]], seconds: float = SECONDS) -> RanProcess:
    """Run a job in one process for each entry of `arguments`, which are tensors.

    The processes meet through a file, and talk on this machine's loopback alone.

    Raises:
        RankFailed: a process raised or ended, or they did not end within `seconds` by the clock.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        lines: list[Any] = []
        processes: list[Any] = []
        for rank, given in enumerate(arguments):
            ours, theirs = context.Pipe(duplex=False)
            plain = [x.numpy() for x in given]
            args = (job, rank, len(arguments), meeting, plain, theirs, seconds)
            process = context.Process(target=_live, args=args, daemon=True)
            process.start()
            theirs.close()
            lines.append(ours)
            processes.append(process)
        try:
            told = _heard(lines, processes, time.monotonic() + seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()
    return RanProcess(
        [_tensors(each["result"]) for each in told],
        [Traffic(**each["traffic"]) for each in told],
        [each["peak_bytes"] for each in told],
    )


def load_function(file: Path, name: str) -> Callable[..., Any]:
    """A function of a file that is run as a module of its own; raises AttributeError where it has none."""
    spec = importlib.util.spec_from_file_location(f"ranks_run_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


class ProcessHandle:
    """A transfer over gloo: see `labkit.ranks.comm.Handle`."""

    def __init__(self, works: list[Any], buffers: tuple[torch.Tensor, ...], kept: Sequence[torch.Tensor]) -> None:
        self.tensors = buffers
        self._works, self._kept = works, kept

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Return when everything is sent and received."""
        for work in self._works:
            work.wait()
        self._works, self._kept = [], ()
        return self.tensors


class ProcessComm:
    """A rank's connection with the others over torch.distributed: see `labkit.ranks.comm.Comm`."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.traffic = Traffic()
        self._held = 0

    def send_recv(self, tensors: Sequence[torch.Tensor], to: int | None, from_: int | None) -> ProcessHandle:
        """Begin to send to one rank and to receive from one."""
        import torch.distributed as dist

        given = checked_tensors("send_recv", tensors)
        receiver = checked_rank("to", to, self.world_size)
        sender = checked_rank("from_", from_, self.world_size)
        buffers = self._buffers(given) if sender is not None else ()
        if receiver == self.rank or sender == self.rank:
            if receiver != sender:
                raise ValueError("a message to oneself is sent and received in one call")
            for buffer, x in zip(buffers, given, strict=True):
                buffer.copy_(x)
            return ProcessHandle([], buffers, ())
        sent = [x.contiguous() for x in given] if receiver is not None else []
        works = [dist.isend(x, receiver) for x in sent] + [dist.irecv(x, sender) for x in buffers]
        self._count(sent, buffers)
        return ProcessHandle(works, buffers, sent)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, rank by rank."""
        (given,) = checked_tensors("all_gather", [tensor])
        return self._exchange([given] * self.world_size)

    def all_to_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What every rank has for this one, rank by rank."""
        given = checked_tensors("all_to_all", tensors, self.world_size)
        if len({described([x]) for x in given}) > 1:
            raise ValueError(f"all_to_all takes tensors of one shape and dtype, got {described(given)}")
        return self._exchange(given)

    def _exchange(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send to every other rank what is for it, and receive what it has for this one."""
        handles = {}
        for step in range(1, self.world_size):
            to, from_ = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
            handles[from_] = self.send_recv([given[to]], to, from_)
        came = {rank: handle.wait()[0] for rank, handle in handles.items()}
        return [given[rank] if rank == self.rank else came[rank] for rank in range(self.world_size)]

    def _buffers(self, like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        made = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like)
        for x in made:
            x.fill_(math.nan if x.is_floating_point() else -1)
            self._held += x.nbytes
            self.traffic.held_bytes = max(self.traffic.held_bytes, self._held)
            weakref.finalize(x.untyped_storage(), self._let_go, x.nbytes)
        return made

    def _let_go(self, n_bytes: int) -> None:
        self._held -= n_bytes

    def _count(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
        self.traffic.messages += len(sent)
        self.traffic.sent_bytes += sum(x.nbytes for x in sent)
        self.traffic.received_bytes += sum(x.nbytes for x in received)


def _live(job: Job, rank: int, world_size: int, meeting: str, plain: Sequence[Any], line: Any, seconds: float) -> None:
    """A rank's process."""
    try:
        line.send(_told(job, rank, world_size, meeting, plain, seconds))
    except BaseException as error:
        with contextlib.suppress(OSError):
            line.send({"error": _error_in(job.file, error)})
        os._exit(1)
    os._exit(0)  # gloo's threads need not be waited for


def _told(job: Job, rank: int, world_size: int, meeting: str, plain: Sequence[Any], seconds: float) -> dict[str, Any]:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=seconds)
    )
    given = [torch.from_numpy(x) for x in plain]
    function = load_function(job.file, job.function)
    comm = ProcessComm(rank, world_size)
    dist.barrier()
    with torch.no_grad(), AllocationMeter() as memory:
        result = function(comm, *given, **job.options)
    peak_bytes = memory.peak_bytes + sum(x.nbytes for x in given)
    dist.barrier()  # nobody leaves while another still reads from it
    arrays = [x.numpy() for x in result] if isinstance(result, tuple | list) else [result.numpy()]
    return {"result": arrays, "traffic": asdict(comm.traffic), "peak_bytes": peak_bytes}


def _error_in(file: Path, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = f" in line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}: {error}{where}".replace("NotImplementedError: ", "not implemented yet")


def _heard(lines: list[Any], processes: list[Any], deadline: float) -> list[dict[str, Any]]:
    """What every rank tells.

    One that fails takes its neighbours along, and theirs may be heard first: the others have a moment to tell, and
    what was no consequence is raised.
    """
    told: dict[int, dict[str, Any]] = {}
    failed: dict[int, str] = {}
    while len(told) + len(failed) < len(lines):
        waiting = [line for rank, line in enumerate(lines) if rank not in told and rank not in failed]
        ready: Any = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for line in ready:
            rank = lines.index(line)
            try:
                said = line.recv()
            except EOFError:
                processes[rank].join(1)
                failed[rank] = f"rank {rank} ended with status {processes[rank].exitcode}"
            else:
                if "error" in said:
                    failed[rank] = f"rank {rank}: {said['error']}"
                else:
                    told[rank] = said
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    if failed:
        raise RankFailed(min(failed.values(), key=lambda why: "gloo" in why))  # gloo tells of a neighbour that is gone
    if len(told) < len(lines):
        late = ", ".join(str(rank) for rank in range(len(lines)) if rank not in told)
        raise RankFailed(f"rank {late} did not end in time: ranks that wait for one another never do")
    return [told[rank] for rank in range(len(lines))]


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(x) for x in result)
