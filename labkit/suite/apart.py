"""Runs a lab's suite in a process of its own, which reports each test as it begins and as it ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from labkit.labs.catalog import find_lab, python_path
from labkit.labs.manifest import Lab
from labkit.suite.limits import WALL_FACTOR, WALL_SECONDS
from labkit.suite.run import SuiteRun, run_suite
from labkit.suite.verdict import State, Verdict, how_it_ended, verdict_from
from labkit.suite.warm import CONTEXT, WarmRunner

STOP_SECONDS = 60.0
"""How long after a test's own limit its process is killed: for a test that its limit cannot stop."""
END_SECONDS = 5.0
"""How long a process may take to end after Ctrl-C."""


class Listener:
    """Is called while a suite runs."""

    def on_start(self, task: str, test: str, n_collected: int) -> None:
        """A test begins."""

    def on_verdict(self, verdict: Verdict) -> None:
        """A test has ended."""


def run_apart(
    lab: Lab,
    *options: str,
    tests: Sequence[str] = (),
    listener: Listener | None = None,
    show_prints: bool = False,
) -> SuiteRun:
    """As `run_suite`, in a process of its own.

    An answer that ends its process (a crash in a library, `os._exit`) ends the run: its last verdict names the test.
    Ctrl-C ends it too, and `interrupted` says where.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    stream = None if show_prints else subprocess.DEVNULL
    child = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "labkit.suite.apart",
            str(theirs.fileno()),
            _job(lab, options, tests, show_prints),
        ],
        pass_fds=[theirs.fileno()],
        stdin=stream,
        stdout=stream,
        stderr=stream,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=not show_prints,  # Ctrl-C is for this process, which passes it on once
    )
    theirs.close()
    seconds = None if show_prints else _most_seconds(lab)
    try:
        events = _events(ours, child, seconds)
        return _heard(lab, events, lambda: how_it_ended(child.wait()), listener or Listener())
    finally:
        child.kill()
        child.wait()


class ForkedRuns:
    """Runs the suite of a lab again and again, each time in a process forked from one that has imported `modules`."""

    def __init__(self, lab: Lab, modules: Sequence[str]) -> None:
        self._lab = lab
        WarmRunner((*modules, __name__))  # starts the process that forks

    def run(self, *options: str, tests: Sequence[str] = (), listener: Listener | None = None) -> SuiteRun:
        """As `run_apart`."""
        ours, theirs = CONTEXT.Pipe(duplex=False)
        child = CONTEXT.Process(target=_forked, args=(theirs, _job(self._lab, options, tests, False)))
        child.start()
        theirs.close()

        def ended() -> str:
            child.join()
            return how_it_ended(child.exitcode or 0)

        try:
            return _heard(self._lab, _events(ours, child, _most_seconds(self._lab)), ended, listener or Listener())
        finally:
            child.kill()
            child.join()


def _job(lab: Lab, options: Sequence[str], tests: Sequence[str], show_prints: bool) -> str:
    return json.dumps({"lab": str(lab.folder), "options": options, "tests": tests, "show_prints": show_prints})


def _most_seconds(lab: Lab) -> float:
    return max(WALL_SECONDS, WALL_FACTOR * lab.test_seconds) + STOP_SECONDS


def _events(connection: Connection, child: Any, seconds: float | None) -> Iterator[dict[str, Any]]:
    """What a process sends; it is killed when it sends nothing for so many seconds, and Ctrl-C is passed on to it."""
    is_interrupted = False
    while True:
        try:
            if not connection.poll(seconds):
                child.kill()
            event = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        except KeyboardInterrupt:
            if is_interrupted:
                raise
            is_interrupted, seconds = True, END_SECONDS
            os.kill(child.pid, signal.SIGINT)
        else:
            yield event


def _heard(lab: Lab, events: Iterator[dict[str, Any]], ended: Callable[[], str], listener: Listener) -> SuiteRun:
    """The run that the `events` of `_tell` describe; `ended` says how the process ended that sent them."""
    run = SuiteRun()
    task = test = ""
    for event in events:
        if "collected" in event:
            run.collected, run.n_collected = event["collected"], event["n_collected"]
        elif "test" in event:
            task, test = event["task"], event["test"]
            listener.on_start(task, test, run.n_collected)
        elif "verdict" in event:
            run.verdicts.append(verdict_from(event["verdict"]))
            test = ""
            listener.on_verdict(run.verdicts[-1])
        else:
            run.problem, run.interrupted = event["problem"], event["interrupted"]
            return run
    run.died = ended()
    if test:
        run.verdicts.append(Verdict(test, task, State.CRASHED, (f"its process ended: {run.died}",)))
    else:
        run.problem = f"importing {lab.answer_file.name} ends the process: {run.died}"
    return run


def _tell(connection: Connection, job: dict[str, Any]) -> None:
    """Run a suite as `job` says, and send what `_heard` understands."""

    def send(**event: Any) -> None:
        connection.send_bytes(json.dumps(event).encode())

    def on_start(task: str, test: str, run: SuiteRun) -> None:
        if not run.verdicts:
            send(collected=run.collected, n_collected=run.n_collected)
        send(task=task, test=test)

    run = run_suite(
        find_lab(job["lab"]),
        *job["options"],
        tests=job["tests"],
        on_start=on_start,
        on_verdict=lambda verdict, _: send(verdict=asdict(verdict)),
        show_prints=job["show_prints"],
    )
    send(problem=run.problem, interrupted=run.interrupted)


def _forked(connection: Connection, job: str) -> None:
    os.setsid()  # as `start_new_session`
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    _tell(connection, json.loads(job))


def _main(descriptor: str, job: str) -> None:
    os.set_inheritable(int(descriptor), False)
    _tell(Connection(int(descriptor), readable=False), json.loads(job))


if __name__ == "__main__":
    _main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # what torch's libraries print on the way out is nobody's concern here
