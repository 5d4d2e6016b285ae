"""The box in which answers live: bubblewrap around a process that sees an interpreter, libraries, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import labkit
from labkit.suite.allowed import HEAVY
from labstaff.judge.confine import CPU_SECONDS, MEMORY_BYTES
from labstaff.judge.forkserver import REQUEST, STATUS

ALWAYS = ("labkit.meters.arrays", "labkit.simulated_memory")
CELL_BYTES = int(os.environ.get("ATTENTION_LABS_CELL_BYTES", MEMORY_BYTES))
START_SECONDS = 180.0
END_SECONDS = 10.0

INSIDE = [
    *("labkit/__init__.py", "labkit/hierarchy.py", "labkit/simulated_memory.py", "labkit/meters"),
    *("labkit/suite/__init__.py", "labkit/suite/prefork_torch.py", "labstaff/__init__.py"),
    *(f"labstaff/judge/{name}.py" for name in ("confine", "server", "guards", "policy", "codec", "forkserver")),
]
"""What of labkit is in the box: calling and measuring. No reference, no expected value, no suite."""


class SandboxMissing(Exception):
    """There is no bubblewrap here, or it may not work here; the message says what to do."""


class Cell:
    """A process for one answer, in the box."""

    def __init__(self, sandbox: Sandbox, channel: socket.socket, number: int) -> None:
        self.sandbox, self.channel, self.number = sandbox, channel, number
        self.status: int | None = None

    def close(self) -> None:
        """End it, and wait until it has ended."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        self.channel.close()
        self.status = self.sandbox.wait(self.number) if self.status is None else self.status

    def last_words(self) -> str:
        """How it ended, for a message: nothing when it ended by itself."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return ""
        number = os.WTERMSIG(self.status)
        names = {signal.SIGXCPU: "its time was used up", signal.SIGSEGV: "a crash: SIGSEGV"}
        return f" ({names.get(signal.Signals(number), signal.Signals(number).name)})"


class Sandbox:
    """One box with a warm process in it. Cells come one after the other.

    Args:
        heavy: modules to import before the first cell, beside those that every answer may need.
        unsafe: do without bubblewrap: the answer is a process of its own all the same, bounded and without processes,
            programs and sockets, but it sees this machine's files.

    Raises:
        SandboxMissing: bubblewrap is not there or does not work, and `unsafe` was not given.
    """

    current: Sandbox | None = None
    """The box that this process, or the one it was forked from, has ready."""

    def __init__(self, heavy: Sequence[str] = (), *, unsafe: bool = False) -> None:
        self.unsafe = unsafe
        if not unsafe:
            require_bubblewrap()
        self.n_cells = 0
        self.control, theirs = socket.socketpair()
        self._tools = tempfile.TemporaryDirectory(prefix="labkit-")
        tools = Path(self._tools.name)
        _copy_tools(tools)
        first = f"import sys; sys.path.insert(0, {str(tools)!r}); from labstaff.judge.forkserver import main"
        code = f"{first}; main({theirs.fileno()}, {[*ALWAYS, *heavy]})"
        command = [sys.executable, "-P", "-c", code]
        if not unsafe:
            command = [*bubblewrap(tools), *command]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment(), start_new_session=True
        )
        theirs.close()

    def cell(self, memory_bytes: int = CELL_BYTES, cpu_seconds: int = CPU_SECONDS) -> Cell:
        """A new process for one answer."""
        self.wait_until_ready()
        ours, theirs = socket.socketpair()
        self.n_cells += 1
        number = self.n_cells + (os.getpid() << 32)
        with theirs:
            socket.send_fds(self.control, [REQUEST.pack(number, memory_bytes, cpu_seconds)], [theirs.fileno()])
        return Cell(self, ours, number)

    def wait_until_ready(self) -> None:
        """Until everything heavy is imported."""
        if not getattr(self, "_ready", False):
            self.wait(0, START_SECONDS)
            self._ready = True

    def wait(self, number: int, seconds: float = END_SECONDS) -> int:
        """The wait status of a cell that ends now; statuses nobody waited for are dropped."""
        self.control.settimeout(seconds)
        try:
            while True:
                data = self.control.recv(STATUS.size, socket.MSG_WAITALL)
                if len(data) < STATUS.size:
                    raise SandboxMissing("the sandbox has ended by itself")
                ended, status = STATUS.unpack(data)
                if ended == number:
                    return status
        except TimeoutError:
            raise SandboxMissing(f"the sandbox did not answer within {seconds:g} s") from None
        finally:
            self.control.settimeout(None)

    def close(self) -> None:
        """End the box and all in it."""
        self.control.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=END_SECONDS)
        self._tools.cleanup()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def keep_boxed(modules: Sequence[str]) -> Callable[[], None]:
    """For a runner of suites (`prepare`): have a box ready for its runs."""
    return _kept(modules, unsafe=False)


def keep_unboxed(modules: Sequence[str]) -> Callable[[], None]:
    """As `keep_boxed`, without walls."""
    return _kept(modules, unsafe=True)


def _kept(modules: Sequence[str], *, unsafe: bool) -> Callable[[], None]:
    sandbox = Sandbox.current = Sandbox([each for each in modules if each in HEAVY.values()], unsafe=unsafe)
    return sandbox.wait_until_ready


def require_bubblewrap() -> None:
    """Raise `SandboxMissing`, with what to do about it, unless a box can be made here."""
    if not sys.platform.startswith("linux") or shutil.which("bwrap") is None:
        raise SandboxMissing(
            "bubblewrap (bwrap) is not installed: submissions are judged inside it and nowhere else.\n"
            "Debian, Ubuntu: apt-get install bubblewrap · Fedora: dnf install bubblewrap · macOS: in a Linux VM.\n"
            "--unsafe-no-sandbox judges without it: a submission can then read this machine's files."
        )
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"], capture_output=True, text=True
    )
    if tried.returncode:
        raise SandboxMissing(
            f"bubblewrap does not work here: {tried.stderr.strip()}\n"
            "It needs unprivileged user namespaces (kernel.unprivileged_userns_clone=1, or bwrap setuid).\n"
            "--unsafe-no-sandbox judges without it: a submission can then read this machine's files."
        )


def bubblewrap(tools: Path) -> list[str]:
    """The command that makes the box: the system's libraries, the interpreter and its packages, read-only."""
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for name, value in _environment().items():
        command += ["--setenv", name, value]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in map(Path, ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            command += ["--ro-bind", str(path), str(path)]
    for path in dict.fromkeys(map(Path, (sys.base_prefix, sys.prefix))):
        if Path("/usr") not in (path, *path.parents):
            command += ["--ro-bind", str(path), str(path)]
    return [*command, "--ro-bind", str(tools), str(tools), "--chdir", "/tmp", "--"]


def _environment() -> dict[str, str]:
    fixed = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "agg", "LANG": "C.UTF-8"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return fixed | threads | {"PYTHONDONTWRITEBYTECODE": "1"}


def _copy_tools(folder: Path) -> None:
    source = Path(labkit.__file__).parents[1]
    for name in INSIDE:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source / name, target)
