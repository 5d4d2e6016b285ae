"""Runs suites in children forked from a parent that has imported everything once, so that no run pays for imports."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_lab, python_path
from labkit.suite.forkserver import Child, Forker, ForkServer, ServerEnded, serve, warm_up
from labkit.suite.run import OVERTIME, SuiteRun, run_suite
from labkit.suite.verdict import Verdict, how_it_ended, verdict_from

HEAVY = {"torch": "labkit.suite.prefork_torch", "matplotlib": "matplotlib.pyplot"}
"""What takes long to import, by the name under which a text mentions it."""

SUITE_SECONDS = 3600.0
"""For what no test's own limit can end. It goes by the clock, so it must be far behind them."""
DIED = "the run ended without a result"
"""How `problem` begins for a run whose process died."""

ALWAYS = ("numpy", "pytest", "hypothesis")


def heavy_modules(*files: Path) -> tuple[str, ...]:
    """What is worth importing once, before runs of a suite that consists of `files`, as far as they are there."""
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    return tuple(module for name, module in HEAVY.items() if name in text)


class WarmRunner:
    """Runs suites in forked children of one warm parent, as many at a time as threads ask for.

    Args:
        modules: imported in the parent before the first run, where they are installed.
        threads: how many threads NumPy and torch may use in a run.
        prepare: "module:function", called in the parent with `modules` before it imports them. What it returns is
            entered then and left at the parent's end; what that gives is called when all is imported. So a caller keeps
            more than modules ready for its runs.
    """

    def __init__(self, modules: tuple[str, ...] = (), threads: int = 1, prepare: str = "") -> None:
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, "-P", "-m", "labkit.suite.prefork", prepare, ",".join([*ALWAYS, *modules])]
        self._server = ForkServer(command, env={**os.environ, **limits, "PYTHONPATH": python_path()})

    def run(
        self,
        lab: str,
        *options: str,
        tests: tuple[str, ...] = (),
        cpu_seconds: float | None = None,
        seconds: float = SUITE_SECONDS,
    ) -> SuiteRun:
        """Run the suite of `lab` (its label) as `run_suite` does; killed after `seconds`, which `problem` then says.

        A run that dies or is killed keeps the verdicts that it had reached.

        Args:
            cpu_seconds: see `run_suite`.
            seconds: by the clock.

        Raises:
            RuntimeError: the parent is gone.
        """
        return run_by(
            self._server, {"lab": lab, "options": options, "tests": tests, "cpu_seconds": cpu_seconds}, seconds
        )

    def begin(self, life: str, **job: Any) -> Forker:
        """A child that serves forks of its own. `life`, a "module:function", is called there, with a socket and `job`.

        Closing what is returned ends it.

        Raises:
            RuntimeError: the parent is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = self._server.fork(json.dumps({"life": life, **job}).encode(), [theirs.fileno()])
        except ServerEnded as error:
            ours.close()
            raise RuntimeError(str(error)) from None
        return Forker(ours, child)

    def close(self) -> None:
        """End the parent."""
        self._server.close()

    def __enter__(self) -> WarmRunner:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def run_by(forker: Forker, job: dict[str, Any], seconds: float) -> SuiteRun:
    """What a child of `forker`'s tells of the run that `job` asks for; killed after `seconds` by the clock.

    Raises:
        RuntimeError: nobody forks any more.
    """
    ours, theirs = socket.socketpair()
    with ours:
        try:
            with theirs:
                child = forker.fork(json.dumps(job).encode(), [theirs.fileno()])
            return _heard(ours, child, seconds)
        except ServerEnded as error:
            raise RuntimeError(str(error)) from None


def _heard(channel: socket.socket, child: Child, seconds: float) -> SuiteRun:
    """What a run tells of itself, line by line, until it ends or its time is over."""
    run, data = SuiteRun(), bytearray()
    deadline = time.monotonic() + seconds
    while select.select([channel], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = channel.recv(1 << 16)
        if not part:
            status = os.waitstatus_to_exitcode(child.wait(seconds).status)
            child.kill()
            run.died = how_it_ended(status)
            run.problem = f"{DIED}: {run.died}"
            return run
        data += part
        *lines, rest = data.split(b"\n")
        data = bytearray(rest)
        for told in map(json.loads, lines):
            if "verdict" in told:
                run.verdicts.append(verdict_from(told["verdict"]))
                run.n_collected = told["n_collected"]
            else:
                child.kill()
                return SuiteRun(list(map(verdict_from, told["verdicts"])), told["n_collected"], told["problem"])
    child.kill()
    run.problem = f"{OVERTIME} within {seconds:g} s by the clock"
    return run


class Teller:
    """Tells a run as it goes, and at its end, to who listens at the other end of `channel`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def on_verdict(self, verdict: Verdict, n_collected: int) -> None:
        """One more."""
        self._tell({"verdict": asdict(verdict), "n_collected": n_collected})

    def on_end(self, run: SuiteRun) -> None:
        """All of it."""
        self._tell(asdict(run))

    def _tell(self, what: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(what).encode() + b"\n")


def _live(request: bytes, descriptors: list[int]) -> None:
    """A child's life: one run, or what was asked for in its place."""
    job = json.loads(request)
    sys.dont_write_bytecode = False  # pytest keeps the suite it has rewritten, for the next child
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    channel = socket.socket(fileno=descriptors[0])
    if life := job.pop("life", ""):
        _named(life)(channel, **job)
        return
    teller = Teller(channel)
    run = run_suite(
        find_lab(job["lab"]),
        *job["options"],
        tests=job["tests"],
        on_verdict=teller.on_verdict,
        cpu_seconds=job["cpu_seconds"],
    )
    teller.on_end(run)


_rehearsed: set[str] = set()


def _rehearse(request: bytes) -> None:
    """In the parent, before the first run of a suite: collect it once, on no answer.

    What the suite and pytest import on the way is there in every child. The suite itself is imported anew in each.
    """
    job = json.loads(request)
    lab = find_lab(job["lab"])
    if "life" in job or lab.label in _rehearsed:
        return
    _rehearsed.add(lab.label)
    sys.dont_write_bytecode = False  # pytest keeps the suite it has rewritten, for the children
    with tempfile.TemporaryDirectory(prefix="no-answer-") as folder:
        run_suite(lab, "--collect-only", "--src", folder)
    for name in [name for name in sys.modules if name.split(".")[0] == lab.folder.parent.name]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def _named(function: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def main(prepare: str, modules: str, control: str) -> None:
    """The parent's life: import `modules`, then make a child for each job until nobody can ask for more."""
    names = modules.split(",")
    kept = _named(prepare)(names) if prepare else contextlib.nullcontext(lambda: None)
    with kept as wait_until_ready:
        warm_up(names)
        wait_until_ready()
        serve(socket.socket(fileno=int(control)), _live, before=_rehearse)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # what torch's libraries say of themselves on the way out is nobody's concern here
