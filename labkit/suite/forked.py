"""Runs suites in processes forked from multiprocessing's fork server, which has imported pytest and NumPy."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_lab, python_path
from labkit.labs.manifest import Lab
from labkit.suite.limits import WALL_SECONDS, Exceeded, Limit, cpu_seconds_of
from labkit.suite.messages import ProcessEnded, explain
from labkit.suite.results import Ended, How, TestResult
from labkit.suite.run import Listener, SuiteRun, run_suite

CLOCK_FACTOR = 10.0
STOP_SECONDS = 60.0
"""A test that its limit cannot stop is killed after `CLOCK_FACTOR` times that limit and so long more, by the clock."""
MIN_MEMORY_BYTES = 2 << 30
"""A run may have so much even where less is available: every lab's solution needs less."""
END_SECONDS = 5.0
"""How long a process may take to end after Ctrl-C."""
PROCESS_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9."""
SLOW_IMPORTS = {"torch": "labkit.suite.prefork_torch", "matplotlib": "matplotlib.pyplot"}
"""What takes long to import, by the name under which a text mentions it."""
ALWAYS = (
    *("__main__", "numpy", "numpy.random", "pytest", "labkit.suite.plugin", "labkit.testing.compare", __name__),
    *("labkit.meters.arrays", "labkit.testing.memory_limit", "pdb", "xml.etree.ElementTree"),
    *(f"_pytest.{name}" for name in ("faulthandler", "helpconfig", "junitxml", "skipping", "threadexception")),
    *("_pytest.tracemalloc", "_pytest.unraisableexception", "_pytest.warnings"),
)
"""Imported by the server, if it is there; what each run needs and would import again, half of a short run's time.

Without `__main__`, each forked process would import the command's module again.
"""
_ENVIRONMENT = threading.Lock()
HAS_FORK = hasattr(os, "fork")
CONTEXT: Any = multiprocessing.get_context("forkserver" if HAS_FORK else "spawn")
"""Without `fork` (Windows) each run starts a process that imports everything again, and nothing limits its time."""


def heavy_modules(*files: Path) -> tuple[str, ...]:
    """The installed modules worth importing once, before runs of a suite that consists of `files`."""
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    return tuple(module for name, module in SLOW_IMPORTS.items() if name in text)


def start_server(modules: Sequence[str] = ()) -> None:
    """Start this process's fork server, unless it runs; it imports `modules`, and ends with this process."""
    if not HAS_FORK:
        return
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Nothing is imported from the current folder, which may hold a submission's files.
    isolated = {"PYTHONSAFEPATH": "1", "PYTHONPATH": python_path()}
    CONTEXT.set_forkserver_preload([*ALWAYS, *modules])
    with _environment(one_thread | isolated):
        try:
            forkserver.ensure_running()
        except ChildProcessError:  # it has ended, and something else has waited for it
            forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]
            forkserver.ensure_running()


class ForkedRunner:
    """Runs suites for graders and for the course's tests; several threads may call it at once.

    Args:
        modules: imported once, where they are installed; only the first runner of a process decides.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        start_server(modules)
        self._under_way: set[Callable[[], None]] = set()
        """What kills each run that is under way."""

    def run(
        self,
        lab: str,
        *options: str,
        tests: Sequence[str] = (),
        cpu_seconds: float | None = None,
        seconds: float | None = None,
        most_seconds: float = math.inf,
        prepare: Callable[[], None] | None = None,
        file: Path | None = None,
    ) -> SuiteRun:
        """Run the suite of `lab` (its label) as `run_suite` does. A run that dies keeps the results that it had.

        Args:
            cpu_seconds, file: see `run_suite`.
            seconds: the run is killed when no test has begun or ended for so long; by default a minute more than the
                lab's limits allow.
            most_seconds: the run is killed after so long in any case; it keeps the results that it had.
            prepare: called in the process first; it can be pickled.
        """
        if seconds is None:
            seconds = _most_seconds(find_lab(lab))
        job = _Job(lab, options, tuple(tests), cpu_seconds, prepare, file=file)
        run, _ = _run(job, Listener(), seconds, most_seconds, self._under_way)
        if run.ended.how is How.INTERRUPTED:
            raise KeyboardInterrupt
        return run

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the fork server and of all its runs that have ended; 0 where /proc does not show them."""
        return cpu_seconds_of(forkserver._forkserver._forkserver_pid or 0)  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Kill the runs of all threads: each returns at once, with the results that it had."""
        for kill in list(self._under_way):
            kill()

    def close(self) -> None:
        """Nothing needs to end: the fork server ends with this process."""

    def __enter__(self) -> ForkedRunner:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def run_forked(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    listener: Listener | None = None,
    show_prints: bool = False,
) -> SuiteRun:
    """Run the suite of `lab` for a student, as `run_suite` does, in a separate process.

    Code that ends the process (a crash in a library, `os._exit`) ends the run: its last result names the test.
    Ctrl-C ends it too, and `ended` says where.
    """
    start_server()
    stdin = _Stdin() if show_prints else None
    job = _Job(lab.label, options, tuple(tests), prepare=limit_memory, stdin=stdin)
    run, running = _run(job, listener or Listener(), None if show_prints else _most_seconds(lab))
    if run.ended.how in (How.DIED, How.OUT_OF_TIME):
        if running:
            crashed = explain(ProcessEnded(run.ended.status), [])
            run.results.append(TestResult(running.test, running.task, *crashed))
        elif not run.results:
            run.ended = replace(run.ended, imported=lab.student_file.name)
    return run


def limit_memory() -> None:
    """Let this process hold no more than the memory that is available: asking for more raises MemoryError.

    Only on Linux, which has `/proc/meminfo`, and not where there is a GPU: its driver reserves far more than it uses.
    """
    meminfo = Path("/proc/meminfo")
    if (
        not HAS_FORK
        or not meminfo.exists()
        or any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
    ):
        return
    available = re.search(r"^MemAvailable: +(\d+) kB", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    if available:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = max(int(available[1]) << 10, MIN_MEMORY_BYTES)
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class _Stdin:
    """Standard input for a forked process: multiprocessing closes the process's own."""

    def __init__(self, inherited: Any = None) -> None:
        self._inherited = inherited

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # there is none on Windows

        return _Stdin, (DupFd(0),)

    def open(self) -> None:
        """Open it, in the forked process."""
        os.dup2(self._inherited.detach(), 0)
        sys.stdin = os.fdopen(0, closefd=False)


@dataclass(frozen=True)
class _Job:
    """One run; with `stdin`, it has the terminal."""

    lab: str
    options: tuple[str, ...]
    tests: tuple[str, ...]
    cpu_seconds: float | None = None
    prepare: Callable[[], None] | None = None
    stdin: _Stdin | None = None
    file: Path | None = None


@dataclass(frozen=True)
class _Started:
    """Message: a test begins; the first one carries the names of all tests."""

    task: str
    test: str
    collected: dict[str, list[str]] | None


def _most_seconds(lab: Lab) -> float:
    """By the clock, for a test that its own limits do not stop: in one long call they cannot."""
    return max(WALL_SECONDS, CLOCK_FACTOR * lab.test_seconds) + STOP_SECONDS


def _run(
    job: _Job,
    listener: Listener,
    seconds: float | None,
    most_seconds: float = math.inf,
    under_way: set[Callable[[], None]] | None = None,
) -> tuple[SuiteRun, _Started | None]:
    """Returns a run, and the test during which its process died, if it did; `under_way` has its kill meanwhile."""
    connection, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_live, args=(theirs, job), daemon=True)
    with connection, contextlib.ExitStack() as stack:
        with theirs:
            process.start()
        kill = partial(_kill, process, _handle(process.pid, stack))
        kills = under_way if under_way is not None else set()
        kills.add(kill)
        try:
            return _followed(process, connection, kill, listener, seconds, most_seconds)
        finally:
            kills.discard(kill)
            kill()
            process.join()


def _followed(
    process: Any,
    connection: Connection,
    kill: Callable[[], None],
    listener: Listener,
    seconds: float | None,
    most_seconds: float,
) -> tuple[SuiteRun, _Started | None]:
    run = SuiteRun()
    running: _Started | None = None
    is_interrupted = is_late = False
    give_up = time.monotonic() + most_seconds
    while True:
        try:
            left = give_up - time.monotonic()
            if not connection.poll(seconds if left == math.inf else max(0, min(left, seconds or left))):
                is_late = True
                kill()
            event = connection.recv()
        except (EOFError, OSError):
            break
        except KeyboardInterrupt:
            if is_interrupted:
                raise
            is_interrupted, seconds = True, END_SECONDS
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGINT)
            continue
        if isinstance(event, SuiteRun):
            return event, None
        if isinstance(event, _Started):
            running = event
            if event.collected is not None:
                run.collected = event.collected
                run.n_collected = sum(map(len, event.collected.values()))
            listener.on_start(event.task, event.test, run)
        else:
            running = None
            run.results.append(event)
            listener.on_result(event, run)
    if is_interrupted:
        raise KeyboardInterrupt
    process.join(END_SECONDS)
    allowed = most_seconds if seconds is None or time.monotonic() >= give_up else seconds
    late = Exceeded(Limit.CLOCK, round(allowed)) if is_late else None
    run.ended = Ended(How.OUT_OF_TIME if late else How.DIED, late, process.exitcode or 0)
    return run, running


def _handle(pid: int | None, stack: contextlib.ExitStack) -> int | None:
    """What names a process even after its end, until `stack` closes it; None where the system has no such thing."""
    if pid is None or not hasattr(os, "pidfd_open"):
        return None
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    stack.callback(os.close, handle)
    return handle


def _kill(process: Any, handle: int | None) -> None:
    """Kill a run's process and the processes that the code under test has started in its group.

    By its number only until the fork server has waited for it: then the number may be another's.
    """
    if handle is not None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, signal.SIGKILL, None, PROCESS_GROUP)
    if process.exitcode is None and not HAS_FORK:
        process.terminate()  # on Windows the same as kill
    elif process.exitcode is None:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process.pid, signal.SIGKILL)


class _Sender(Listener):
    """Sends events in the forked process to the process that requested the run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def on_start(self, task: str, test: str, run: SuiteRun) -> None:
        """Send the test's names, and with the first those of all tests."""
        self._connection.send(_Started(task, test, None if run.results else run.collected))

    def on_result(self, result: TestResult, run: SuiteRun) -> None:
        """Send the result."""
        self._connection.send(result)


def _live(connection: Connection, job: _Job) -> None:
    """Run a job in the forked process."""
    if job.stdin:
        job.stdin.open()
    else:
        if HAS_FORK:
            os.setsid()  # Ctrl-C is for the process that asked for the run, which passes it on
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
    sys.dont_write_bytecode = False  # pytest stores the suite that it has rewritten, for the next run
    gc.freeze()  # meters collect garbage, which would go through all that torch has made, each time
    if job.prepare:
        job.prepare()
    run = run_suite(
        find_lab(job.lab),
        *job.options,
        tests=job.tests,
        listener=_Sender(connection),
        show_prints=job.stdin is not None,
        cpu_seconds=job.cpu_seconds,
        file=job.file,
    )
    sys.stdout.flush()
    connection.send(run)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Context with these variables set: one thread at a time, and the others' variables are there all the while."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
