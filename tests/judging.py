"""Runs labs' suites for the course's tests, beside them: a process of its own, so that their memory can be weighed.

`python -m tests.judging JOBS RESULTS SANDBOX` reads jobs from the file JOBS, runs them two at a time, each in a child
forked from a warm parent, and adds a line to RESULTS for each.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from labkit.meters.kernels.kept import kernels_kept
from labkit.suite.run import SuiteRun
from labkit.suite.warm import WarmRunner
from labstaff.grader.runner import SandboxedRunner

N_RUNNERS = 2
HEAVY = ("labkit.suite.prefork_torch", "matplotlib.pyplot")


def main(jobs_file: str, results_file: str, sandbox: str) -> None:
    """Run every job; an exception of a runner is the problem of the job's result."""
    jobs = json.loads(Path(jobs_file).read_text(encoding="utf-8"))
    kernels = kernels_kept(Path(results_file).with_name("kernels"))  # most answers' are the solution's
    with (
        kernels,
        (
            SandboxedRunner() if sandbox else WarmRunner(HEAVY)
        ) as runner,  # one parent for all: it imports what all need once
        Path(results_file).open("a", encoding="utf-8", buffering=1) as results,
    ):

        def one(number: int) -> None:
            job = jobs[number]
            began = time.perf_counter()
            try:
                run = runner.run(job["lab"], *job["options"], tests=tuple(job["tests"]))
            except Exception as error:
                run = SuiteRun(problem=f"{type(error).__name__}: {error}")
            told = {"number": number, "seconds": time.perf_counter() - began, "run": asdict(run)}
            results.write(json.dumps(told) + "\n")

        with ThreadPoolExecutor(N_RUNNERS) as pool:
            list(pool.map(one, range(len(jobs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
