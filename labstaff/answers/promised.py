"""Tries what pyproject.toml promises: solutions and a sample of mistakes under other Pythons and the lowest libraries.

`python -m labstaff.answers.promised` makes an environment for each promise, one after the other, judges in it and
removes it again; it prints a line of a table for each. `--here` judges in the environment that runs it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from queue import Queue
from typing import Annotated, NamedTuple

import typer

from labkit.labs.catalog import ROOT, find_lab, find_labs, python_path
from labkit.labs.manifest import Lab
from labkit.suite.finder import platform_problem
from labkit.suite.prefork import WarmRunner, heavy_modules
from labstaff.answers.mistakes import Mistake, mistakes_of
from labstaff.answers.show import is_found

RUNNERS = 2
LONGEST_ERROR = 300
STUDENTS = ((), ("hint", "01", "--again"), ("model", "llama-3-8b"), ("watch", "--help"))
"""Commands of `lab` that end by themselves and write nothing."""
LIBRARIES = ("numpy", "torch", "pytest")
COLUMNS = ("Python", "versions", *LIBRARIES, "solutions that pass", "mistakes that are found")
NAMES = {"lowest-direct": "the lowest", "highest": "the newest"}
PROMISED = ("3.11:lowest-direct", "3.12:highest", "3.13:highest", "3.13:lowest-direct")
"""Pythons, and which versions of the libraries: the lowest that pyproject.toml allows, or the newest there are."""


class Tried(NamedTuple):
    """What was judged in one environment: how much of it as it must be, and a line for each thing that was not."""

    n_solutions: int
    n_passed: int
    n_mistakes: int
    n_found: int
    problems: list[str]


def judge_here(labs: list[Lab], mistakes_a_task: int) -> Tried:
    """Judge every solution here, and the first mistakes of each task by the tests that must find them.

    A lab that says that it needs later libraries than these is left out, which is printed.
    """
    for lab in labs:
        if problem := platform_problem(lab):
            typer.echo(f"{lab.label} is left out: it {problem}", err=True)
    labs = [lab for lab in labs if not platform_problem(lab)]
    sample = [mistake for lab in labs for mistake in _sample(lab, mistakes_a_task)]
    idle: Queue[WarmRunner] = Queue()
    for _ in range(RUNNERS):
        idle.put(WarmRunner(heavy_modules(*(lab.suite_file for lab in labs))))

    def solution(lab: Lab) -> str:
        runner = idle.get()
        try:
            run = runner.run(lab.label, "--solutions")
        finally:
            idle.put(runner)
        failed = [f"{each.test}: {' / '.join(each.lines)}" for each in run.verdicts if not each.passed]
        if run.problem or failed or not 0 < len(run.verdicts) == run.n_collected:
            return f"{lab.label}: {len(failed)} tests refuse the solution: {run.problem or '; '.join(failed[:3])}"
        return ""

    def mistake(each: Mistake) -> str:
        runner = idle.get()
        try:
            with tempfile.TemporaryDirectory(prefix="mistake-") as folder:
                each.write(Path(folder))
                run = runner.run(each.lab.label, "--src", folder, tests=each.killed_by)
        finally:
            idle.put(runner)
        said = run.problem or "; ".join(line for verdict in run.verdicts for line in verdict.lines)
        return "" if is_found(each, run.verdicts) else f"{each.lab.label}: {each.name} is not found: {said[:400]}"

    with ThreadPoolExecutor(RUNNERS) as pool:
        refused = [problem for problem in pool.map(solution, labs) if problem]
        missed = [problem for problem in pool.map(mistake, sample) if problem]
    while not idle.empty():
        idle.get().close()
    problems = [*refused, *missed, *_commands_that_fail()]
    return Tried(len(labs), len(labs) - len(refused), len(sample), len(sample) - len(missed), problems)


def row(promise: str, tried: Tried) -> str:
    """A line of the table, of the environment that runs this."""
    known = NAMES.get(promise.partition(":")[2], "as they are here")
    solutions, mistakes = f"{tried.n_passed} of {tried.n_solutions}", f"{tried.n_found} of {tried.n_mistakes}"
    return line(platform.python_version(), known, *map(version, LIBRARIES), solutions, mistakes)


def line(*cells: str) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def commands(promise: str, environment: Path) -> Iterator[list[str]]:
    """What makes the environment of a promise, with uv: the project's own dependencies and nothing else."""
    python, _, resolution = promise.partition(":")
    yield ["uv", "venv", "--quiet", "--python", python, str(environment)]
    requirements = ["--resolution", resolution, "--requirements", str(ROOT / "pyproject.toml")]
    yield ["uv", "pip", "install", "--quiet", "--python", str(environment), *requirements]


def _commands_that_fail() -> Iterator[str]:
    """What a student calls, which stands on other libraries than the suites do."""
    for command in STUDENTS:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "labkit.commands.cli", *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            yield f"lab {' '.join(command)}: {(done.stderr.strip() or 'it says nothing').splitlines()[-1]}"


def _sample(lab: Lab, mistakes_a_task: int) -> Iterator[Mistake]:
    every = mistakes_of(lab)
    for task in lab.tasks:
        yield from [mistake for mistake in every if mistake.task == task.name][:mistakes_a_task]


def _tried_apart(promise: str, arguments: list[str]) -> bool:
    """Judge in an environment made for it, which is removed afterwards; what it says is printed here."""
    with tempfile.TemporaryDirectory(prefix="promised-") as folder:
        environment = Path(folder, "environment")
        for command in commands(promise, environment):
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                why = " ".join((made.stderr.strip() or "it says nothing").split())
                typer.echo(line(*promise.split(":"), "cannot be had here", "", "", "", ""))
                typer.echo(f"{' '.join(command[:3])} …: {why[:LONGEST_ERROR]}", err=True)
                return False
        python = str(environment / "bin" / "python")
        here = [python, "-m", "labstaff.answers.promised", "--here", promise, *arguments]
        return subprocess.run(here, cwd=ROOT).returncode == 0


def main(
    promises: Annotated[list[str] | None, typer.Argument(metavar="[PYTHON:RESOLUTION]...")] = None,
    here: Annotated[bool, typer.Option("--here", help="judge in this environment, and print one line")] = False,
    mistakes: Annotated[int, typer.Option(help="of each task, how many mistakes")] = 1,
    lab: Annotated[list[str] | None, typer.Option("--lab", help="a lab's number; all when none is named")] = None,
) -> None:
    """Try the promised versions, one environment after the other; ends with 1 when one does not hold."""
    if here:
        tried = judge_here([find_lab(name) for name in lab or []] or find_labs(), mistakes)
        typer.echo(row((promises or [""])[0], tried))
        for problem in tried.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(1 if tried.problems else 0)
    typer.echo(line(*COLUMNS))
    typer.echo(line(*["---"] * len(COLUMNS)))
    arguments = ["--mistakes", str(mistakes), *(part for name in lab or [] for part in ("--lab", name))]
    held = [_tried_apart(promise, arguments) for promise in promises or PROMISED]
    raise typer.Exit(0 if all(held) else 1)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    typer.run(main)
