"""A parent that has imported everything once and forks a child for each run, so that no run pays for imports.

The parent is a process of its own that computes nothing and starts no threads: forking a process whose OpenMP threads
have run would hang the child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.run import SuiteRun, run_suite
from labkit.suite.verdict import State, Verdict

SUITE_SECONDS = 300.0
ALWAYS = ("numpy", "pytest", "hypothesis")
HEAVY = {"torch": "labkit.suite.prefork_torch", "matplotlib": "matplotlib.pyplot"}
"""What takes long to import, by the name under which a file mentions it."""


def heavy_modules(*files: Path) -> tuple[str, ...]:
    """What is worth importing once, before runs of a suite that consists of `files`, as far as they are there."""
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    return tuple(module for name, module in HEAVY.items() if name in text)


class WarmRunner:
    """Runs suites in forked children of one warm parent. One run at a time; use one runner a core.

    Args:
        modules: imported in the parent before the first run, where they are installed.
        threads: how many threads NumPy and torch may use in a run.
        sandbox: keep a sandbox warm too, for runs with `--sandboxed`: "bubblewrap", or "none" for one without walls.
    """

    def __init__(self, modules: tuple[str, ...] = (), threads: int = 1, sandbox: str = "") -> None:
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._parent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "labkit.suite.prefork",
                *([f"--sandbox={sandbox}"] if sandbox else []),
                *ALWAYS,
                *modules,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, "PYTHONPATH": path},
        )
        self._lock = threading.Lock()

    def run(self, lab: str, *options: str, tests: tuple[str, ...] = (), seconds: float = SUITE_SECONDS) -> SuiteRun:
        """Run the suite of `lab` (its label) as `run_suite` does; killed after `seconds`, which `problem` then says.

        Raises:
            RuntimeError: the parent is gone.
        """
        job = {"lab": lab, "options": options, "tests": tests, "seconds": seconds}
        with self._lock:
            assert self._parent.stdin is not None and self._parent.stdout is not None
            try:
                self._parent.stdin.write(json.dumps(job) + "\n")
                self._parent.stdin.flush()
                answer = self._parent.stdout.readline()
            except BrokenPipeError:
                answer = ""
        if not answer:
            raise RuntimeError("the process that keeps the imports warm has ended")
        data = json.loads(answer)
        verdicts = [Verdict(**{**v, "state": State(v["state"]), "lines": tuple(v["lines"])}) for v in data["verdicts"]]
        return SuiteRun(verdicts, data["n_collected"], data["problem"])

    def close(self) -> None:
        """End the parent."""
        with contextlib.suppress(OSError):
            if self._parent.stdin:
                self._parent.stdin.close()
        self._parent.wait(timeout=10)

    def __enter__(self) -> WarmRunner:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def serve(modules: list[str], jobs: IO[str], answers: IO[str]) -> None:
    """The parent's life: import `modules`, then answer a job a line until `jobs` ends.

    A module written `--sandbox=…` is a sandbox to be started first, which every child then finds ready.
    """
    sandbox = None
    if modules and modules[0].startswith("--sandbox="):
        from labstaff.judge.sandbox import Sandbox

        unsafe = modules.pop(0) == "--sandbox=none"
        sandbox = Sandbox.current = Sandbox([each for each in modules if each in HEAVY.values()], unsafe=unsafe)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    if sandbox:
        sandbox.wait_until_ready()
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, every page of the parent's objects
    for line in jobs:
        answers.write(json.dumps(_in_child(json.loads(line))) + "\n")
        answers.flush()


def _in_child(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job in a forked child of its own process group, and wait for it no longer than it may take."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(reader)
            _live(job, result)
        os.close(writer)
        done, _, _ = select.select([reader], [], [], job["seconds"])
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if result.exists():
            return json.loads(result.read_text(encoding="utf-8"))
    reason = "the run ended without a result" if done else f"the run did not end within {job['seconds']:g} s"
    return {"verdicts": [], "n_collected": 0, "problem": f"{reason} (wait status {status})"}


def _live(job: dict[str, Any], result: Path) -> None:
    """The child's life; it ends here, whatever happens."""
    try:
        sys.dont_write_bytecode = False  # pytest keeps the suite it has rewritten, for the next child
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        run = run_suite(find_lab(job["lab"]), *job["options"], tests=job["tests"])
        written = result.with_suffix(".part")
        written.write_text(json.dumps(asdict(run)), encoding="utf-8")
        written.rename(result)
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:], sys.stdin, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # what torch's libraries say of themselves on the way out is nobody's concern here
