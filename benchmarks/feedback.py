"""What a NumPy lab costs over a bare pytest that imports numpy.

Each run is a process of its own, and the clock is the one on the wall: what a student waits for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Table, rows, time_in_turn
from labkit.labs.catalog import ROOT, find_lab
from labstaff.derive.build import derive_stub

TESTS_A_CLASS = 12
OFF = [f"-pno:{name}" for name in ("anyio", "hypothesispytest", "threadexception", "unraisableexception")]
EMPTY_CLASS = "class Test{number}:\n" + "".join(
    f"    def test_{i}(self):\n        pass\n" for i in range(TESTS_A_CLASS)
)


def tables(*, rounds: int = 9) -> Iterator[Table]:
    """One table: seven runs of pytest, from an empty one to Lab 01 solved."""
    lab = find_lab("01")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n_classes = _write_empty_tests(folder, lab.suite_file.read_text(encoding="utf-8").count("    def test_"))
        (folder / f"{lab.module}.py").write_text(derive_stub(lab), encoding="utf-8")
        suite = [str(lab.folder), "--src", str(folder)]
        no_figures = ["-k", "not Plot"]
        empty = [str(folder / "test_empty.py")]
        bare = ["-c", str(folder / "pytest.ini"), *empty]
        first = f"bare pytest, numpy, {n_classes * TESTS_A_CLASS} empty tests"
        runs = {
            first: bare,
            "the same without the plugins that labkit switches off": [*bare, *OFF],
            "the same tests with labkit's plugin": ["-c", str(ROOT / "pyproject.toml"), *empty],
            "Lab 01 untouched": suite,
            "Lab 01 untouched, without the task that imports matplotlib": [*suite, *no_figures],
            "Lab 01 solved, without it": [str(lab.folder), "--solutions", *no_figures],
            "Lab 01 solved": [str(lab.folder), "--solutions"],
        }
        candidates = {label: partial(_run, arguments) for label, arguments in runs.items()}
        times = time_in_turn(candidates, rounds, clock=time.perf_counter, warm=0)
    yield Table("feedback", "a student's run", f"wall time, {rounds} rounds", rows=rows(times, (first,)))


def _write_empty_tests(folder: Path, at_least: int) -> int:
    n_classes = -(-at_least // TESTS_A_CLASS)
    classes = [EMPTY_CLASS.format(number=number) for number in range(n_classes)]
    (folder / "test_empty.py").write_text("import numpy  # noqa: F401\n\n" + "\n".join(classes), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return n_classes


def _run(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    if done.returncode > 1:
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
