"""The box in which answers live: bubblewrap around a process that sees an interpreter, libraries, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import labkit
from labkit.kernels.bubblewrap import bwrap_path
from labkit.suite.forkserver import Child, Ended, ForkServer, ServerEnded
from labkit.suite.limits import cpu_seconds_of
from labkit.suite.prefork import HEAVY
from labkit.suite.verdict import how_it_ended
from labkit.suite.wall_clock import queued_seconds_of
from labstaff.judge import framing, messages
from labstaff.judge.confine import CAN_FILTER, CPU_SECONDS, MEMORY_BYTES, SCRATCH
from labstaff.judge.unpacking import unpacker_of

ALWAYS = (
    *("labkit.meters.arrays", "numpy.testing", "numpy.typing", "statistics", "dataclasses"),
    *("decimal", "fractions", "numpy.fft", "numpy.polynomial", "numpy.lib.stride_tricks", "typing_extensions"),
)
"""Imported before the first cell: what answers may import, as far as it costs little."""

BESIDE = {"matplotlib.pyplot": ("matplotlib.backends.backend_agg",)}
"""What is imported beside a heavy module, since its first use would import it."""

START_SECONDS = 180.0
END_SECONDS = 10.0
BROKEN = "the judge's box is broken"
POWERS = {
    "users": ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_DAC_READ_SEARCH"),
    "namespaces": ("CAP_SYS_ADMIN", "CAP_SETFCAP"),
}
"""What the process that makes cells keeps to do so, by the walls around them: see `forkserver`."""

INSIDE = (
    *("labkit/__init__.py", "labkit/meters", "labkit/ranks", "labkit/suite/__init__.py"),
    *("labkit/suite/forkserver.py", "labkit/suite/limits.py", "labkit/suite/wall_clock.py"),
    *("labkit/suite/prefork_torch.py", "labstaff/__init__.py"),
    *(
        f"labstaff/judge/{name}.py"
        for name in (
            *(
                "__init__",
                "confine",
                "forkserver",
                "framing",
                "loading",
                "messages",
                "packing",
                "remote_machine",
            ),
            *("server", "tracking", "unpacking"),
        )
    ),
)
"""What of the course is in the box: calling and measuring. No reference, no expected value, no suite, no machine."""

unpack = unpacker_of(messages.Ready)
CREDENTIALS = struct.Struct("iII")  # of a process: its number, user and group


class SandboxMissing(Exception):
    """There is no bubblewrap here, or it may not work here; the message says what to do."""


class BoxBroken(pytest.exit.Exception):  # type: ignore[name-defined]
    """The box, or a cell that no answer was in yet, has failed: the judge's fault. Ends a run of pytest."""

    def __init__(self, why: object) -> None:
        super().__init__(f"{BROKEN}: {why}", returncode=pytest.ExitCode.INTERNAL_ERROR)


class Cell:
    """A process for one answer, in the box, which has shut all doors behind itself."""

    def __init__(self, channel: socket.socket, child: Child, pid: int, most_cpu_seconds: int) -> None:
        self.channel, self._child, self._pid, self.most_cpu_seconds = channel, child, pid, most_cpu_seconds
        self._signals: int | None = None  # a number may be another process's by the time it is used
        with contextlib.suppress(OSError):
            self._signals = os.pidfd_open(pid) if pid else None
        self.ended: Ended | None = None
        self._queued_seconds = 0.0

    @property
    def cpu_seconds(self) -> float:
        """The CPU time it has taken so far."""
        return self.ended.cpu_seconds if self.ended else cpu_seconds_of(self._pid, alone=CAN_FILTER)

    @property
    def queued_seconds(self) -> float:
        """For how long it has waited for a processor so far; what was known of that when it ended."""
        if self.ended is None:
            self._queued_seconds = max(self._queued_seconds, queued_seconds_of(self._pid))
        return self._queued_seconds

    def stop_what_runs(self) -> None:
        """Tell it that the time of what it does is over. Raises OSError where it cannot be told."""
        if self._signals is None:
            raise ProcessLookupError("nobody has told its number")
        signal.pidfd_send_signal(self._signals, signal.SIGUSR1)

    def end(self) -> Ended:
        """End it, and wait until it has ended.

        Raises:
            BoxBroken: the box has ended, and perhaps that was why this cell did.
        """
        self.channel.close()
        if self._signals is not None:
            os.close(self._signals)
            self._signals = None
        if self.ended is None:
            try:
                self.ended = self._child.kill()
            except ServerEnded as error:
                raise BoxBroken(error) from None
        return self.ended

    def last_words(self) -> str:
        """After it has hung up: how it ended, for a message. Raises as `end`."""
        try:
            self._child.wait(END_SECONDS)
        except TimeoutError:
            self.end()
            return "it hung up, and lived on"
        except ServerEnded as error:
            raise BoxBroken(error) from None
        ended = self.end()
        if ended.signal == signal.SIGKILL and ended.cpu_seconds >= self.most_cpu_seconds:
            return "its time was used up"
        return how_it_ended(os.waitstatus_to_exitcode(ended.status))


class Sandbox:
    """One box with a warm process in it, which makes a cell for each answer, many at a time.

    Args:
        heavy: modules to import before the first cell, beside those that every answer may need.
        unsafe: do without bubblewrap: the answer is a process of its own all the same, bounded and without processes,
            programs and sockets, but it sees this machine's files and is of the grader's user.

    Raises:
        SandboxMissing: bubblewrap is not there or does not work, and `unsafe` was not given.
    """

    current: Sandbox | None = None
    """The box that this process, or the one it was forked from, has ready."""

    def __init__(self, heavy: Sequence[str] = (), *, unsafe: bool = False) -> None:
        self.n_cells = 0
        walls = "" if unsafe else require_bubblewrap()
        home = Path(labkit.__file__).parents[1] if unsafe else Path("/judge")
        modules = ",".join([*ALWAYS, *heavy, *(each for name in heavy for each in BESIDE.get(name, ()))])
        first = f"import sys; sys.path.insert(0, {str(home)!r}); from labstaff.judge.forkserver import main"
        command = [sys.executable, "-P", "-c", f"{first}; main(*sys.argv[1:])", modules, walls]
        self._server = ForkServer(command if unsafe else [*bubblewrap(walls), *command], env=environment("/tmp"))

    def cell(
        self, memory_bytes: int | None = None, cpu_seconds: int = CPU_SECONDS, modules: Sequence[str] = ()
    ) -> Cell:
        """A new process for one answer, which may hold `memory_bytes` over what it holds before the answer is loaded.

        Args:
            modules: imported before its memory is bounded: libraries that the answer imports do not count.

        Raises:
            BoxBroken: none can be had.
        """
        is_measured = memory_bytes is not None
        if memory_bytes is None:
            memory_bytes = int(os.environ.get("ATTENTION_LABS_CELL_BYTES", MEMORY_BYTES))
        self.n_cells += 1
        number = self.n_cells + 64 * os.getpid()  # of several suites that share the box, none has another's user
        asked = {
            "number": number,
            "memory_bytes": memory_bytes,
            "cpu_seconds": cpu_seconds,
            "is_measured": is_measured,
            "modules": list(modules),
        }
        ours, theirs = socket.socketpair()
        if hasattr(socket, "SO_PASSCRED"):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before the other side sends
        try:
            with theirs:
                child = self._server.fork(json.dumps(asked).encode(), [theirs.fileno()])
            pid = _sender(ours)
            unpack(*framing.receive(ours, START_SECONDS))
        except (ServerEnded, EOFError, OSError, framing.CodecError) as error:
            ours.close()
            raise BoxBroken(f"no process for an answer could be had: {error or 'it ended at once'}") from None
        return Cell(ours, child, pid, cpu_seconds)

    def wait_until_ready(self) -> None:
        """Until everything heavy is imported, and a first cell was there."""
        self.cell().end()

    def close(self) -> None:
        """End the box and all in it."""
        self._server.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def keep_boxed(modules: Sequence[str]) -> AbstractContextManager[Callable[[], None]]:
    """For a runner of suites (`prepare`): have a box ready for its runs."""
    return _kept(modules, unsafe=False)


def keep_unboxed(modules: Sequence[str]) -> AbstractContextManager[Callable[[], None]]:
    """As `keep_boxed`, without walls."""
    return _kept(modules, unsafe=True)


@contextlib.contextmanager
def _kept(modules: Sequence[str], *, unsafe: bool) -> Iterator[Callable[[], None]]:
    with Sandbox([each for each in modules if each in HEAVY.values()], unsafe=unsafe) as sandbox:
        Sandbox.current = sandbox
        yield sandbox.wait_until_ready


def require_bubblewrap() -> str:
    """The walls that a box can have here; raises `SandboxMissing`, with what to do about it, unless there are some."""
    if not sys.platform.startswith("linux") or bwrap_path() is None:
        raise SandboxMissing(
            "bubblewrap (bwrap) is not installed: submissions are judged inside it and nowhere else.\n"
            "It comes with `uv sync` on Linux, and as the package bubblewrap of distributions; macOS: in a Linux VM.\n"
            "--unsafe-no-sandbox judges without it: a submission can then read this machine's files."
        )
    said = ""
    for walls in ("users", "namespaces") if _may_have_users() else ("namespaces",):
        tried = subprocess.run([*bubblewrap(walls), "/usr/bin/true"], capture_output=True, text=True)
        if tried.returncode == 0:
            return walls
        said = tried.stderr.strip()
    raise SandboxMissing(
        f"bubblewrap does not work here: {said}\n"
        "It needs unprivileged user namespaces (kernel.unprivileged_userns_clone=1, or bwrap setuid).\n"
        "--unsafe-no-sandbox judges without it: a submission can then read this machine's files."
    )


def bubblewrap(walls: str) -> list[str]:
    """The command that makes the box: the system's libraries, the interpreter and its packages, read-only."""
    command = [bwrap_path() or "bwrap", *(f"--unshare-{each}" for each in ("pid", "net", "ipc", "uts", "cgroup-try"))]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    command += ["--unshare-user"] if walls == "namespaces" else []
    for power in POWERS[walls]:
        command += ["--cap-add", power]
    for name, value in environment(SCRATCH).items():
        command += ["--setenv", name, value]
    command += ["--proc", "/proc", "--tmpfs", SCRATCH, "--tmpfs", "/tmp"]
    shown: dict[Path, Path] = {}
    for path in map(Path, ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            shown[path] = path
    for path in map(Path, (sys.base_prefix, sys.prefix)):
        if Path("/usr") not in (path, *path.parents):
            shown[path] = path
    home = Path(labkit.__file__).parents[1]
    shown |= {Path("/judge", name): home / name for name in INSIDE}
    devices = [Path("/dev", name) for name in ("null", "zero", "random", "urandom")]
    above = {parent for path in (*shown, *devices) for parent in path.parents} - {Path("/")}
    for folder in sorted(above):  # others than the grader's user must find their way through them
        command += ["--perms", "0755", "--dir", str(folder)] if folder not in shown else []
    for path, source in shown.items():
        command += ["--ro-bind", str(source), str(path)]
    for device in devices:
        command += ["--dev-bind", str(device), str(device)]
    return [*command, "--remount-ro", "/tmp", "--remount-ro", "/", "--chdir", SCRATCH, "--"]


def environment(home: str) -> dict[str, str]:
    """What answers find in their environment: nothing of the grader's. They may write in `home`."""
    fixed = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LOGNAME": "answer", "LANG": "C.UTF-8"}
    plots = {"MPLCONFIGDIR": home, "MPLBACKEND": "agg"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return fixed | plots | threads | {"PYTHONDONTWRITEBYTECODE": "1"}


def _sender(channel: socket.socket) -> int:
    """The process that has sent what comes next, by its number here; 0 where nobody tells."""
    if not hasattr(socket, "SO_PASSCRED"):
        return 0
    channel.settimeout(START_SECONDS)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        _, told, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_PEEK)
    finally:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        channel.settimeout(None)
    return next((CREDENTIALS.unpack(data)[0] for _, kind, data in told if kind == socket.SCM_CREDENTIALS), 0)


def _may_have_users() -> bool:
    """Whether this process may give cells users of their own: root, with root's powers, and not of a few users only."""
    if os.geteuid() != 0:
        return False
    mapped = Path("/proc/self/uid_map").read_text().split()
    return len(mapped) == 3 and int(mapped[2]) > 0x7FFFFFFF
