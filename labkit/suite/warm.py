"""Runs suites in processes forked from one that has imported everything once (multiprocessing's fork server)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_lab, python_path
from labkit.suite.run import OVERTIME, SuiteRun, run_suite
from labkit.suite.verdict import how_it_ended

SUITE_SECONDS = 3600.0
"""By the clock, for what no test's own limit can end."""
DIED = "the run ended without a result"
"""How `problem` begins for a run whose process died."""
HEAVY = {"torch": "labkit.suite.prefork_torch", "matplotlib": "matplotlib.pyplot"}
"""What takes long to import, by the name under which a text mentions it."""
ALWAYS = ("__main__", "numpy", "pytest", "hypothesis", "labkit.suite.plugin")
CONTEXT = multiprocessing.get_context("forkserver")


def heavy_modules(*files: Path) -> tuple[str, ...]:
    """What is worth importing once, before runs of a suite that consists of `files`, as far as they are there."""
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    return tuple(module for name, module in HEAVY.items() if name in text)


class WarmRunner:
    """Runs suites in forked processes, as many at a time as threads ask for.

    Args:
        modules: imported in the fork server, where they are installed; only the first runner of a process decides.
        threads: how many threads NumPy and torch may use in a run.
    """

    def __init__(self, modules: tuple[str, ...] = (), threads: int = 1) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        isolated = {"PYTHONSAFEPATH": "1", "PYTHONPATH": python_path()}  # nothing is imported from the current folder
        CONTEXT.set_forkserver_preload([*ALWAYS, *modules])
        with _environment(limits | isolated):
            try:
                forkserver.ensure_running()
            except ChildProcessError:  # it has ended, and something else has waited for it
                forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]
                forkserver.ensure_running()

    def run(
        self,
        lab: str,
        *options: str,
        tests: tuple[str, ...] = (),
        cpu_seconds: float | None = None,
        seconds: float = SUITE_SECONDS,
        prepare: Callable[[], None] | None = None,
    ) -> SuiteRun:
        """Run the suite of `lab` (its label) as `run_suite` does; killed after `seconds`, which `problem` then says.

        A run that dies or is killed keeps the verdicts that it had reached.

        Args:
            cpu_seconds: see `run_suite`.
            seconds: by the clock.
            prepare: called in the process first; it can be pickled.
        """
        ours, theirs = CONTEXT.Pipe(duplex=False)
        arguments = {"lab": lab, "options": options, "tests": tests, "cpu_seconds": cpu_seconds}
        process = CONTEXT.Process(target=_live, args=(theirs, arguments, prepare), daemon=True)
        with ours:
            with theirs:
                process.start()
            run = _heard(ours, seconds)
        if run.died:
            process.join(seconds)
            run.died = how_it_ended(process.exitcode or 0)
            run.problem = f"{DIED}: {run.died}"
        for kill in (os.killpg, os.kill):  # what it has left behind
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process.pid or 0, signal.SIGKILL)
        process.join()
        return run

    def close(self) -> None:
        """Nothing is left to end: the fork server ends with this process."""

    def __enter__(self) -> WarmRunner:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _heard(channel: Connection, seconds: float) -> SuiteRun:
    """What a run reports, test by test, until it ends or its time is over."""
    run, deadline = SuiteRun(), time.monotonic() + seconds
    while channel.poll(max(0.0, deadline - time.monotonic())):
        try:
            reported = channel.recv()
        except (EOFError, OSError):
            run.died = "it died"
            return run
        if isinstance(reported, SuiteRun):
            return reported
        verdict, run.n_collected = reported
        run.verdicts.append(verdict)
    run.problem = f"{OVERTIME} within {seconds:g} s by the clock"
    return run


def _live(channel: Connection, job: dict[str, Any], prepare: Callable[[], None] | None) -> None:
    """A run's process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    sys.dont_write_bytecode = False  # pytest keeps the suite it has rewritten, for the next run
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    if prepare:
        prepare()
    run = run_suite(
        find_lab(job["lab"]),
        *job["options"],
        tests=job["tests"],
        on_verdict=lambda verdict, n_collected: channel.send((verdict, n_collected)),
        cpu_seconds=job["cpu_seconds"],
    )
    channel.send(run)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
