"""Runs a lab's suite in a process of its own, and goes on where an answer has taken that process along."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from labkit.labs.catalog import find_lab, python_path
from labkit.labs.manifest import Lab
from labkit.suite.limits import WALL_SECONDS
from labkit.suite.run import SuiteRun, run_suite
from labkit.suite.verdict import Verdict, how_it_ended, verdict_from
from labkit.suite.wall_clock import queued_seconds_of

MOST_STARTS = 40
"""How often a process is started for one run before the rest of its tests fail."""

SILENT_SECONDS = WALL_SECONDS + 60
"""How long a process may tell nothing: a test that its limit cannot stop, in the middle of a library, ends there."""
LEAST_QUEUED_SECONDS = 1.0
"""A shorter wait for a processor prolongs nothing."""

OnVerdict = Callable[[Verdict, int], None]
RunOnce = Callable[[Sequence[str], OnVerdict], SuiteRun]
"""Runs a suite once with further options of pytest's; `died` of the result says how its process ended, if it did."""


def run_apart(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    on_verdict: OnVerdict = lambda verdict, n_collected: None,
    show_prints: bool = False,
) -> SuiteRun:
    """As `run_suite`, in a process of its own.

    An answer that ends its process (a crash in a library, `os._exit`) fails the test that ran; the others are run in
    another process.
    """

    def once(more: Sequence[str], told: OnVerdict) -> SuiteRun:
        return _in_a_process(lab, [*options, *more], tests, told, show_prints)

    return to_the_end(once, on_verdict)


def to_the_end(run_once: RunOnce, on_verdict: OnVerdict = lambda verdict, n_collected: None) -> SuiteRun:
    """The result of `run_once`, begun again without the tests that were judged as often as its process has ended."""
    options: list[str] = []
    judged: list[Verdict] = []

    def told(verdict: Verdict, n_collected: int) -> None:
        on_verdict(verdict, n_collected + n_judged)

    for n_starts in range(1, MOST_STARTS + 2):
        n_judged = len(judged)
        run = run_once(options, told)
        judged += run.verdicts
        if not run.died:
            break
        if not run.verdicts and n_starts > 1 and "--ended" in options and not judged:
            options = ["--unusable", run.died]  # it is not a test that ends the process, but the import
            continue
        each = "--ended" if n_starts < MOST_STARTS else "--ended-all"
        done = json.dumps([f"{verdict.task}::{verdict.test}" for verdict in judged])
        options = [each, f"its process ended: {run.died}", "--judged", done]
    return replace(run, verdicts=judged, n_collected=run.n_collected + n_judged, n_starts=n_starts)


def _in_a_process(
    lab: Lab, options: Sequence[str], tests: Sequence[str], on_verdict: OnVerdict, show_prints: bool
) -> SuiteRun:
    reader, writer = os.pipe()
    job = {"lab": str(lab.folder), "options": options, "tests": list(tests), "show_prints": show_prints}
    stream = None if show_prints else subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "labkit.suite.apart", str(writer), json.dumps(job)],
        pass_fds=[writer],
        stdin=stream,
        stdout=stream,
        stderr=stream,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    os.close(writer)
    run = SuiteRun()
    silence = _Silence(child, None if show_prints else SILENT_SECONDS)
    try:
        with os.fdopen(reader, encoding="utf-8") as lines:
            for line in lines:
                silence.broken()
                told = json.loads(line)
                if "verdict" in told:
                    verdict = verdict_from(told["verdict"])
                    run.verdicts.append(verdict)
                    run.n_collected = told["n_collected"]
                    on_verdict(verdict, run.n_collected)
                else:
                    child.wait()
                    return replace(run, **told)
        status = child.wait()
        run.died = f"it told nothing for {SILENT_SECONDS:g} s" if silence.too_long else how_it_ended(status)
    finally:
        silence.end()
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
    return run


class _Silence:
    """Ends a process that tells nothing for too long; while it waits for a processor, it is not expected to."""

    def __init__(self, child: subprocess.Popen, seconds: float | None) -> None:
        self.too_long = False
        self._child, self._seconds = child, seconds
        self._timer: threading.Timer | None = None
        self.broken()

    def broken(self) -> None:
        self.end()
        if self._seconds is not None:
            self._wait(self._seconds)

    def end(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._queued_before = queued_seconds_of(self._child.pid)
        self._timer = threading.Timer(seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        queued_seconds = queued_seconds_of(self._child.pid) - self._queued_before
        if queued_seconds >= LEAST_QUEUED_SECONDS:
            self._wait(queued_seconds)
            return
        self.too_long = True
        self._child.kill()


def _live(descriptor: int, job: dict[str, Any]) -> None:
    """The life of the process: one run, told line by line."""
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as told:

        def on_verdict(verdict: Verdict, n_collected: int) -> None:
            told.write(json.dumps({"verdict": asdict(verdict), "n_collected": n_collected}) + "\n")

        lab = find_lab(job["lab"])
        run = run_suite(lab, *job["options"], tests=job["tests"], on_verdict=on_verdict, show_prints=job["show_prints"])
        told.write(json.dumps({"n_collected": run.n_collected, "problem": run.problem}) + "\n")


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    _live(int(sys.argv[1]), json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # what torch's libraries say of themselves on the way out is nobody's concern here
