"""Runs, for many mistakes, the tests that must find each: two mistakes at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from labkit.suite.forked import ForkedRunner, heavy_modules
from labkit.suite.run import SuiteRun
from labstaff.authoring.mistakes import Mistake

RUNNERS = 2


def run_mistakes(mistakes: Sequence[Mistake]) -> list[SuiteRun]:
    """For each mistake, the run of the tests that it names, on the module with it; see `SuiteRun.problem`."""
    modules = heavy_modules(*{file for mistake in mistakes for file in mistake.lab.suite_files})
    idle: Queue[ForkedRunner] = Queue()
    for _ in range(min(RUNNERS, len(mistakes))):
        idle.put(ForkedRunner(modules))

    def one(mistake: Mistake) -> SuiteRun:
        runner = idle.get()
        try:
            with tempfile.TemporaryDirectory(prefix="mistake-") as folder:
                mistake.write(Path(folder))
                return runner.run(mistake.lab.label, "--src", folder, tests=mistake.found_by)
        finally:
            idle.put(runner)

    try:
        with ThreadPoolExecutor(RUNNERS) as pool:
            return list(pool.map(one, mistakes))
    finally:
        while not idle.empty():
            idle.get().close()
