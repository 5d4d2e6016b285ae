"""Helpers for tests of the students' side: Lab 01's files, a student's tree, and commands run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.labs.manifest import Lab
from labkit.suite.results import Failure, State, TestResult, load
from labstaff.derive.build import derive_stub
from labstaff.release.choice import FOR_INSTRUCTORS

LAB = find_lab("01")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".lab")


def solution_text() -> str:
    """Lab 01 solved."""
    return solution_file(LAB).read_text(encoding="utf-8")


def stub_text() -> str:
    """Lab 01 untouched."""
    return derive_stub(LAB)


def with_function(source: str, name: str, body: str) -> str:
    """`source` with `body` appended, which defines `name` again: the last definition counts."""
    assert f"def {name}(" in source
    return f"{source}\n\n{body}\n"


def student_lab(root: Path, source: str | None = None) -> Lab:
    """Lab 01 alone in the folder `root`, with `source` as the student's file; untouched without."""
    shutil.copytree(LAB.folder, root / "labs" / LAB.folder.name, ignore=LEFT_OUT)
    lab = find_lab("01", root)
    lab.student_file.write_text(stub_text() if source is None else source, encoding="utf-8")
    return lab


def results(lab: Lab, **passed: int) -> list[TestResult]:
    """Ten results per task, of which the given number pass; a task that is not given is not started."""
    made = []
    for task in lab.tasks:
        for i in range(10):
            if task.name not in passed:
                state = State.NOT_STARTED
            else:
                state = State.PASSED if i < passed[task.name] else State.WRONG
            made.append(
                TestResult(f"test_{i}", task.name, state, Failure() if state is State.PASSED else Failure(f"off {i}"))
            )
    return made


def pytest_run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Lab 01's suite in a separate process on `source`, written to `folder`."""
    (folder / LAB.student_file.name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", str(LAB.folder), "--src", str(folder), "-p", "no:cacheprovider"]
    return _run([*command, *arguments], ROOT, quiet_environment())


def quiet_environment() -> dict[str, str]:
    """This environment, for a process whose output is read: no colours, one thread."""
    return {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


class StudentTree:
    """The students' tree with only Lab 01, in a separate folder, where results are stored too."""

    def __init__(self, folder: Path, source: str | None = None) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "labkit", folder / "labkit", ignore=LEFT_OUT)
        self.lab = student_lab(folder, source)
        settings = FOR_INSTRUCTORS.sub("", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        (folder / "pyproject.toml").write_text(settings, encoding="utf-8")
        self.environment = {**quiet_environment(), "PYTHONPATH": str(folder)}

    def write(self, source: str) -> None:
        """Write the student's file."""
        self.lab.student_file.write_text(source, encoding="utf-8")

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pytest there, on the lab unless `arguments` name tests of its SUITE."""
        suite = str(self.lab.suite_file)
        named = [each.replace("SUITE", suite) for each in arguments]
        where = [] if suite in " ".join(named) else [str(self.lab.folder)]
        return _run([sys.executable, "-m", "pytest", *where, *named], self.folder, self.environment)

    def check(self, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `lab check 01` there."""
        return self.command("check", "01", *arguments, typed=typed)

    def command(self, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `lab` there, with `typed` on its standard input."""
        command = [sys.executable, "-m", "labkit.commands.cli", *arguments]
        return _run(command, self.folder, self.environment, typed)

    def stored(self) -> dict[str, tuple[int, int]]:
        """The stored results: (tests passed, tests) by task."""
        return {name: (result.passed, result.total) for name, result in load(self.lab).items()}


def _run(
    command: list[str], folder: Path, environment: dict[str, str], typed: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, input=typed or ""
    )
