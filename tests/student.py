"""A student's side for tests: a file in a folder of its own, judged with `--src`, seen as a terminal shows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.suite.results import load
from labstaff.derive.build import derive_stub
from labstaff.release.choice import FOR_INSTRUCTORS

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


class House:
    """A student's tree with Lab 01 alone, in a folder of its own: what is kept between runs is kept there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        without = shutil.ignore_patterns("__pycache__", ".lab")
        shutil.copytree(ROOT / "labkit", folder / "labkit", ignore=without)
        shutil.copytree(LAB.folder, folder / "labs" / LAB.folder.name, ignore=without)
        settings = FOR_INSTRUCTORS.sub("", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        (folder / "pyproject.toml").write_text(settings, encoding="utf-8")
        self.lab = find_lab("01", folder)

    def write(self, source: str) -> None:
        """Put `source` where the student's file is."""
        self.lab.answer_file.write_text(source, encoding="utf-8")

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pytest there, on the lab unless `arguments` name another place in it."""
        suite = str(self.lab.suite_file)
        named = [each.replace("SUITE", suite) for each in arguments]
        return self._run("pytest", *([] if suite in " ".join(named) else [str(self.lab.folder)]), *named)

    def check(self, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `lab check 01` there."""
        return self.command("check", "01", *arguments, typed=typed)

    def command(self, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `lab` there, with `typed` on its standard input."""
        return self._run("labkit.commands.cli", *arguments, typed=typed)

    def kept(self) -> dict[str, tuple[int, int]]:
        """What is known of each task: (tests passed, tests)."""
        return {name: (result.passed, result.total) for name, result in load(self.lab).items()}

    def _run(self, *command: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**quiet_environment(), "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            **({"input": typed} if typed is not None else {"stdin": subprocess.DEVNULL}),
        )
