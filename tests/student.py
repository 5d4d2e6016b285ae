"""A student's side for tests: a file in a folder of its own, judged with `--src`, seen as a terminal shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labstaff.derive.build import derive_stub

LAB = find_lab("01")
SUITE = str(LAB.folder)


def solution_text() -> str:
    """Lab 01 solved."""
    return solution_file(LAB).read_text(encoding="utf-8")


def stub_text() -> str:
    """Lab 01 untouched."""
    return derive_stub(LAB)


def with_function(source: str, name: str, body: str) -> str:
    """`source` with `body` appended, which defines `name` anew: the last definition counts."""
    assert f"def {name}(" in source
    return f"{source}\n\n{body}\n"


def pytest_run(folder: Path, source: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Lab 01's suite in a process of its own on `source`, written to `folder`; the file is absent when None."""
    if source is not None:
        (folder / LAB.answer_file.name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", SUITE, "--src", str(folder), "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=quiet_environment(), timeout=120)


def quiet_environment() -> dict[str, str]:
    """This environment, for a child whose output is read: no colours, one thread."""
    return {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
