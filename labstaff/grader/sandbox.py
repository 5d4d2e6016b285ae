"""The sandbox: bubblewrap around a process that sees an interpreter, its packages, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import labkit
from labkit.kernels.bubblewrap import bwrap_path
from labkit.suite.limits import cpu_seconds_of
from labstaff.grader import wire
from labstaff.grader.preload import ENDED

PRELOADED = (
    *("numpy.testing", "numpy.typing", "numpy.fft", "numpy.polynomial", "numpy.lib.stride_tricks", "numpy.ma"),
    *("statistics", "dataclasses", "decimal", "fractions", "logging", "unittest", "typing_extensions"),
    *("cloudpickle", "msgspec", "pyseccomp", "labkit.meters.arrays", "labkit.simulated_memory"),
)
"""Imported before the first worker: what submissions may import, as far as it costs little."""
PRELOAD_EXTRA = {"matplotlib.pyplot": ("matplotlib.backends.backend_agg",)}
"""What the first use of a heavy module would import."""
MOUNTED = (
    *(
        "labkit/__init__.py",
        "labkit/meters",
        "labkit/simulated_memory",
        "labkit/ranks",
        *(f"labkit/serving/{name}.py" for name in ("__init__", "model", "player", "records", "sampling")),
        "labkit/labs/__init__.py",
        "labkit/labs/manifest.py",
    ),
    *(f"labkit/suite/{name}.py" for name in ("__init__", "finder", "limits", "prefork_torch", "source_text")),
    "labstaff/__init__.py",
    *(f"labstaff/grader/{name}.py" for name in ("__init__", "confine", "preload", "wire", "worker")),
)
"""What of the course is inside: calling and measuring. No reference, no expected value, no suite."""
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/proc/cpuinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
CAPABILITIES = ("CAP_CHOWN", "CAP_SETUID", "CAP_SETGID")
"""What the process inside keeps where the grader is root, to become a user of its own, who owns the scratch folder."""
SCRATCH, SCRATCH_BYTES = "/scratch", 16 << 20
TEMPORARY = f"graded-{os.getpid()}-"
"""How the names of this process's temporary folders begin, which hold submissions: `lab grade` removes them."""
START_SECONDS = 180.0
END_SECONDS = 60.0
"""For the end of a worker that was killed: on a busy machine freeing its memory takes seconds."""
UNSAFE = "--unsafe-no-sandbox grades without it: a submission can then read this machine's files."
MISSING = f"""\
submissions are graded inside bubblewrap (bwrap), and it is not installed.
It comes with `uv sync` on Linux, and as the package bubblewrap of distributions; macOS: in a Linux VM.
{UNSAFE}"""
FORBIDDEN_BY = {
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor forbids user namespaces (Ubuntu 24.04 and later): "
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "kernel/unprivileged_userns_clone": (
        "0",
        "The kernel's settings forbid user namespaces: sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    "user/max_user_namespaces": (
        "0",
        "The kernel's settings allow no user namespace: sudo sysctl -w user.max_user_namespaces=15000",
    ),
}
"""Settings below /proc/sys, the values with which bubblewrap cannot work, and what to do."""
IN_A_CONTAINER = (
    "A container's defaults forbid namespaces: docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined …"
)


class SandboxMissing(Exception):
    """bubblewrap or libseccomp is missing, or does not work here; the message says what to do."""


class SandboxBroken(pytest.exit.Exception):  # type: ignore[name-defined]
    """The sandbox gives no worker, through no fault of a submission. Ends a run of pytest."""

    def __init__(self, why: object) -> None:
        super().__init__(f"the sandbox is broken: {why}", returncode=pytest.ExitCode.INTERNAL_ERROR)


class Workers:
    """The process inside a sandbox that forks workers, one at a time, from the side of a process that needs them.

    Args:
        control: a socket to it.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self._last: Worker | None = None

    def worker(self) -> Worker:
        """A new worker; the one before is ended.

        Raises:
            SandboxBroken: the sandbox gives none.
        """
        if self._last is not None:
            self._last.end()
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before the other side sends
        try:
            with theirs:
                socket.send_fds(self.control, [b"+"], [theirs.fileno()])
            pid = _sender(ours)
            self._last = worker = Worker(self, ours, pid)
            wire.receive(ours, wire.READY, START_SECONDS)
        except (EOFError, OSError, wire.NotAsked, wire.WireError) as error:
            ours.close()
            raise SandboxBroken(f"it gives no worker: {type(error).__name__} {error}") from None
        return worker

    def ended(self, seconds: float) -> tuple[int, float]:
        """The wait status of the worker that has ended, and the CPU seconds it used.

        Raises:
            SandboxBroken: the sandbox has ended with it.
            TimeoutError: the worker has not ended within `seconds`.
        """
        self.control.settimeout(seconds)
        try:
            report = self.control.recv(ENDED.size)
        except TimeoutError:
            raise
        except OSError as error:
            raise SandboxBroken(error) from None
        finally:
            self.control.settimeout(None)
        if len(report) != ENDED.size:
            raise SandboxBroken("it has ended")
        status, cpu_seconds = ENDED.unpack(report)
        return status, cpu_seconds


class Sandbox(Workers):
    """One bubblewrap with a process in it that forks workers.

    Args:
        heavy: modules to import before the first worker, besides those that every submission may need.
        unsafe: do without bubblewrap. Limits and the filter of system calls still apply.

    Raises:
        SandboxMissing: bubblewrap or libseccomp is missing, and `unsafe` was not given.
    """

    def __init__(self, heavy: Sequence[str] = (), *, unsafe: bool = False) -> None:
        require_libseccomp()
        self._folder = tempfile.TemporaryDirectory(prefix=TEMPORARY) if unsafe else None
        home = Path(labkit.__file__).parents[1] if unsafe else Path("/course")
        scratch = self._folder.name if self._folder else SCRATCH
        modules = ",".join([*PRELOADED, *heavy, *(each for name in heavy for each in PRELOAD_EXTRA.get(name, ()))])
        user = "" if unsafe else new_user()
        start = f"import sys; sys.path.insert(0, {str(home)!r}); from labstaff.grader.preload import main"
        command = [sys.executable, "-P", "-c", f"{start}; main(*sys.argv[1:])", modules, scratch, user]
        command.append("" if unsafe else "1")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — the sandbox's own
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(control)
        with theirs:
            self._process = subprocess.Popen(
                [*([] if unsafe else bubblewrap()), *command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment(scratch),
                start_new_session=True,
            )

    def is_usable(self) -> bool:
        """Whether it goes on, as itself says: it ends, a moment after the worker, when anything is left in it."""
        self.control.settimeout(END_SECONDS)
        try:
            self.control.send(b"?")
            return self.control.recv(ENDED.size) == b"?"
        except OSError:
            return False
        finally:
            self.control.settimeout(None)

    def last_error(self) -> str:
        """The last line of what went wrong in it, "" for nothing."""
        self._errors.seek(0)
        return (self._errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self.control.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()
        if self._folder:
            self._folder.cleanup()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


current: Workers | None = None
"""The workers that suites in this process are to use, where another process has a sandbox ready."""


def use(control: socket.socket) -> None:
    """Have suites in this process use the sandbox that `control` belongs to."""
    global current
    current = Workers(control)


class Worker:
    """A process for one submission, from the suite's side."""

    def __init__(self, sandbox: Workers, channel: socket.socket, pid: int) -> None:
        self.channel = channel
        self._sandbox, self._pid, self.has_ended = sandbox, pid, False
        self._handle = os.pidfd_open(pid)
        self._cpu_seconds = 0.0

    @property
    def cpu_seconds(self) -> float:
        """The CPU time it has used so far."""
        return self._cpu_seconds if self.has_ended else cpu_seconds_of(self._pid)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """The bytes that RLIMIT_AS counts of it, and those that RLIMIT_DATA counts, as the kernel says."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
        mapped, data = (int(status.partition(f"{name}:")[2].split()[0]) << 10 for name in ("VmSize", "VmData"))
        return mapped, data

    def stop_call(self) -> None:
        """Have the call that it works on raise TookTooLong."""
        signal.pidfd_send_signal(self._handle, signal.SIGPROF)

    def end(self) -> int | None:
        """End it, unless it has ended; its exit status, None where it had ended before."""
        if self.has_ended:
            return None
        self.channel.close()
        try:
            status, self._cpu_seconds = self._sandbox.ended(0.2)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            try:
                status, self._cpu_seconds = self._sandbox.ended(END_SECONDS)
            except TimeoutError:  # in the suite it would be taken for the student's
                raise SandboxBroken(f"what was left of a worker is not gone after {END_SECONDS:g} s") from None
        finally:
            self.has_ended = True
            os.close(self._handle)
        return os.waitstatus_to_exitcode(status)


@functools.cache
def require_sandbox() -> None:
    """Try the sandbox once.

    Raises:
        SandboxMissing: bubblewrap or libseccomp is missing, or the kernel allows no namespaces.
    """
    require_libseccomp()
    tried = subprocess.run([*bubblewrap(), "/usr/bin/true"], capture_output=True, text=True)
    if tried.returncode:
        raise SandboxMissing(f"bubblewrap does not work here: {tried.stderr.strip()}\n{why_no_namespaces()}\n{UNSAFE}")


def why_no_namespaces(root: Path = Path("/")) -> str:
    """What forbids the sandbox's namespaces here, with the command that allows them, as the system under `root` says.

    Ubuntu's setting and Docker's defaults: issues 632 and 505 of bubblewrap.
    """
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return IN_A_CONTAINER
    for name, (value, advice) in FORBIDDEN_BY.items():
        setting = root / "proc/sys" / name
        if setting.exists() and setting.read_text().strip() == value:
            return advice
    return "It needs namespaces of its own, which something on this machine forbids: docs/instructors.md"


def require_libseccomp() -> None:
    """Raise SandboxMissing where the filter of system calls cannot be made."""
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        raise SandboxMissing("the sandbox needs libseccomp: apt-get install libseccomp2") from None


def bubblewrap(inside: Sequence[str] | None = None) -> list[str]:
    """The command that makes the sandbox: system libraries, the interpreter and its packages, all read-only.

    Args:
        inside: what of the course is there, as paths in the repository; by default `MOUNTED`.

    Raises:
        SandboxMissing: bubblewrap is not installed.
    """
    found = bwrap_path() if sys.platform.startswith("linux") else None
    if found is None:
        raise SandboxMissing(MISSING)
    command = [found, *(f"--unshare-{each}" for each in ("pid", "net", "ipc", "uts", "cgroup-try"))]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if may_change_user():
        command += [each for power in CAPABILITIES for each in ("--cap-add", power)]
    else:
        command.append("--unshare-user")
    for name, value in environment(SCRATCH).items():
        command += ["--setenv", name, value]
    command += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", SCRATCH]
    home = Path(labkit.__file__).parents[1]
    shown = {path: path for path in (*SYSTEM, sys.base_prefix, sys.prefix)}
    shown |= {f"/course/{name}": str(home / name) for name in (MOUNTED if inside is None else inside)}
    for folder in sorted({str(parent) for path in (*shown, *DEVICES) for parent in Path(path).parents} - {"/", *shown}):
        command += ["--perms", "0755", "--dir", folder]
    for path, source in shown.items():
        command += ["--ro-bind-try", source, path]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    return [*command, "--remount-ro", "/", "--chdir", SCRATCH, "--"]


def new_user() -> str:
    """A user that nobody is, for a process inside; "" where this one may not change its user."""
    return str(0x70000000 + secrets.randbelow(1 << 24)) if may_change_user() else ""


def environment(scratch: str) -> dict[str, str]:
    """What submissions find in their environment: nothing of the grader's."""
    fixed = {"PATH": "/usr/bin:/bin", "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", "LOGNAME": "student"}
    plots = {"MPLCONFIGDIR": scratch, "MPLBACKEND": "agg"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads["MALLOC_ARENA_MAX"] = "1"  # each further one maps 64 MiB
    eager = {"TORCHDYNAMO_DISABLE": "1"}  # torch.compile starts a compiler, which the sandbox refuses: run as written
    return fixed | plots | threads | eager | {"PYTHONDONTWRITEBYTECODE": "1"}


def may_change_user() -> bool:
    """Whether this process is root with all users mapped: the sandbox then runs as a user of its own."""
    if os.geteuid() != 0:
        return False
    mapped = Path("/proc/self/uid_map").read_text().split()
    return len(mapped) == 3 and int(mapped[2]) > 0x7FFFFFFF


def _sender(channel: socket.socket) -> int:
    """The process that has sent what comes next, by its number here."""
    channel.settimeout(START_SECONDS)
    try:
        data, said, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_PEEK)
    finally:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        channel.settimeout(None)
    found = [struct.unpack("iII", data)[0] for _, kind, data in said if kind == socket.SCM_CREDENTIALS]
    if not data or not found:
        raise EOFError
    return found[0]
