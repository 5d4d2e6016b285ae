"""What a NumPy lab costs over a bare pytest that imports numpy: `python -m benchmarks.feedback`.

Interleaved rounds, each run a process of its own, medians of wall time; ratios, since seconds differ by machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from labkit.labs.catalog import ROOT, find_lab
from labstaff.derive.build import derive_stub

ROUNDS = 9
TESTS_A_CLASS = 12
OFF = [f"-pno:{name}" for name in ("anyio", "hypothesispytest", "threadexception", "unraisableexception")]
EMPTY_CLASS = "class Test{number}:\n" + "".join(
    f"    def test_{i}(self):\n        pass\n" for i in range(TESTS_A_CLASS)
)


def main() -> None:
    """Print the table."""
    lab = find_lab("01")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n_classes = _write_empty_tests(folder, lab.suite_file.read_text(encoding="utf-8").count("    def test_"))
        (folder / f"{lab.module}.py").write_text(derive_stub(lab), encoding="utf-8")
        suite = [str(lab.folder), "--src", str(folder)]
        no_figures = ["-k", "not Plot"]
        empty = [str(folder / "test_empty.py")]
        bare = ["-c", str(folder / "pytest.ini"), *empty]
        runs = {
            f"bare pytest, numpy, {n_classes * TESTS_A_CLASS} empty tests": bare,
            "the same without the plugins that labkit switches off": [*bare, *OFF],
            "the same tests with labkit's plugin": ["-c", str(ROOT / "pyproject.toml"), *empty],
            "Lab 01 untouched": suite,
            "Lab 01 untouched, without the task that imports matplotlib": [*suite, *no_figures],
            "Lab 01 solved, without it": [str(lab.folder), "--solutions", *no_figures],
            "Lab 01 solved": [str(lab.folder), "--solutions"],
        }
        seconds: dict[str, list[float]] = {label: [] for label in runs}
        for _ in range(ROUNDS):
            for label, arguments in runs.items():
                seconds[label].append(_timed(arguments))
    medians = {label: statistics.median(each) for label, each in seconds.items()}
    base = next(iter(medians.values()))
    for label, median in medians.items():
        print(f"{median:6.2f} s  {median / base:5.2f} ×  {label}")


def _write_empty_tests(folder: Path, at_least: int) -> int:
    n_classes = -(-at_least // TESTS_A_CLASS)
    classes = [EMPTY_CLASS.format(number=number) for number in range(n_classes)]
    (folder / "test_empty.py").write_text("import numpy  # noqa: F401\n\n" + "\n".join(classes), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return n_classes


def _timed(arguments: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    if done.returncode > 1:
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
