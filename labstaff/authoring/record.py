"""Records what finds each mistake, and what a student with it reads: `solutions/labNN_name/mistakes/record.json`.

`python -m labstaff.authoring.record [LAB [MISTAKE]...]` runs a lab's mistakes, or all (about 40 minutes for all labs on
two cores); with `--missing` those without a whole record. Only the test classes that name a changed definition of the
solution, directly or through other definitions, are run: the others see the solution's own code.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from labkit.labs.catalog import find_lab, find_labs, solution_file
from labkit.labs.manifest import Lab
from labkit.meters.kernels.cache import cached_kernels
from labkit.suite.forked import ForkedRunner, heavy_modules
from labkit.suite.messages import ending_text, result_lines
from labkit.suite.results import SuiteRun, TestResult
from labstaff.authoring.mistakes import Mistake, Record, find_mistake, mistakes_of, write_records
from labstaff.authoring.show import student_lines

CPU_SECONDS = 100.0
"""Of one run, after which no further test is begun: a mistake that never ends would take hours."""
MAX_SAID = 20
"""Lines of the failing tests that are printed where none says what it must."""


def main(
    lab: Annotated[str | None, typer.Argument(help="its number; all labs when it is left out")] = None,
    names: Annotated[list[str] | None, typer.Argument(metavar="[MISTAKE]...", help="some of its mistakes")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="run only the mistakes whose record is missing or not whole")
    ] = False,
    jobs: Annotated[int, typer.Option(help="how many suites run at a time")] = 2,
) -> None:
    """Run mistakes against their suites and record what finds them; exits with 1 if a mistake is not found."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    labs = [find_lab(lab)] if lab else find_labs()
    n_mistakes = problems = 0
    with (
        tempfile.TemporaryDirectory(prefix="kernels-") as folder,
        cached_kernels(Path(folder, "kernels")),
        ForkedRunner(heavy_modules(*(file for each in labs for file in each.suite_files))) as runner,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for each in labs:
            mistakes = [find_mistake(each, name) for name in names or []] or mistakes_of(each)
            mistakes = [mistake for mistake in mistakes if not (missing and mistake.record and mistake.record.failing)]
            records = {}
            for mistake, record in zip(mistakes, pool.map(lambda m: run(m, runner), mistakes), strict=True):
                n_mistakes += 1
                if isinstance(record, Record):
                    records[mistake.name] = record
                else:
                    problems += 1
                    typer.echo(str(record), err=True)
            write_records(each, records)
    typer.echo(f"{n_mistakes - problems} of {n_mistakes} mistakes are found")
    raise typer.Exit(1 if problems else 0)


def run(mistake: Mistake, runner: ForkedRunner) -> Record | LookupError:
    """Run the suite on a mistake: what finds it, or an error that says that nothing does."""
    with tempfile.TemporaryDirectory(prefix="mistake-") as folder:
        mistake.write(Path(folder))
        tests = affected_classes(mistake.lab, mistake.source())
        suite_run = runner.run(mistake.lab.label, "--src", folder, tests=tests, cpu_seconds=CPU_SECONDS)
    try:
        return record_of(mistake, suite_run)
    except LookupError as error:
        return error


def record_of(mistake: Mistake, run: SuiteRun) -> Record:
    """What a run of the suite on a mistake shows.

    Raises:
        LookupError: no test of its task fails with a message that says what it must, or the suite did not run.
    """
    if run.ended.is_no_verdict:
        raise LookupError(f"{mistake.lab.label}: {mistake.name}: {ending_text(run.ended)}")
    failed = [result for result in run.results if not result.passed]
    for result in failed:
        if result.task == mistake.task and mistake.says in "\n".join(result_lines(result)):
            found_by = _function(mistake.lab, result)
            of_it = [each for each in run.results if _function(mistake.lab, each) == found_by]
            failing = dict.fromkeys(_function(mistake.lab, each) for each in failed)
            return Record(found_by, list(failing), [str(line) for line in student_lines(mistake, of_it)])
    said = [line for result in failed if result.task == mistake.task for line in (result.test, *result_lines(result))]
    nothing = f"{mistake.lab.label}: {mistake.name}: no test of {mistake.task} fails and says {mistake.says!r}"
    raise LookupError("\n  ".join([f"{nothing}; they say:" if said else nothing, *said[:MAX_SAID]]))


def _function(lab: Lab, result: TestResult) -> str:
    """`TestClass::test_name`, without the case."""
    tests = next(task.tests for task in lab.tasks if task.name == result.task)
    return f"{tests}::{result.test.partition('[')[0]}"


def affected_classes(lab: Lab, source: str) -> tuple[str, ...]:
    """The test classes that name, directly or not, a definition in which `source` differs from the solution.

    All of them where something else than functions, classes and simple assignments differs.
    """
    ours, theirs = (_definitions(text) for text in (solution_file(lab).read_text(encoding="utf-8"), source))
    changed = {name for name in ours.keys() | theirs.keys() if _dump(ours.get(name)) != _dump(theirs.get(name))}
    uses = {name: _names(node) | _names(ours.get(name)) for name, node in {**ours, **theirs}.items()}
    suite = _suite_definitions(lab)
    uses |= {f"suite:{name}": _names(node) for name, node in suite.items()}
    while more := {
        name for name, used in uses.items() if name.removeprefix("suite:") not in changed and used & changed
    }:
        changed |= {name.removeprefix("suite:") for name in more}
    classes = tuple(task.tests for task in lab.tasks if task.tests in changed)
    return () if "" in changed or len(classes) == len(lab.tasks) else classes


def _suite_definitions(lab: Lab) -> dict[str, ast.AST | None]:
    """The top-level statements of the lab's tests."""
    found: dict[str, ast.AST | None] = {}
    for file in lab.suite_files:
        found |= _definitions(file.read_text(encoding="utf-8"))
    return found


@functools.lru_cache(maxsize=64)  # the solution and the suite are asked for with each alternative and mistake
def _definitions(text: str) -> dict[str, ast.AST | None]:
    """The top-level statements by the name they bind; all others together under the empty name."""
    found: dict[str, ast.AST | None] = {}
    rest = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            rest.append(node)
    if rest:
        found[""] = ast.Module(rest, [])
    return found


@functools.lru_cache(maxsize=4096)
def _names(node: ast.AST | None) -> frozenset[str]:
    names = set[str]()
    for each in ast.walk(node) if node else ():
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif isinstance(each, ast.Attribute):
            names.add(each.attr)
        elif isinstance(each, ast.arg):  # fixtures
            names.add(each.arg)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            names.update(re.findall(r"\w+", each.value))  # tasks called by name
    return frozenset(names)


def _dump(node: ast.AST | None) -> str:
    return "" if node is None else ast.dump(node)


if __name__ == "__main__":
    typer.run(main)
