"""The matrix of mistakes: which tests of its lab's suite each mistake fails, and the first message a student reads.

`python -m labstaff.authoring.matrix [LAB...]` runs it (about 40 minutes for all labs on two cores) and writes one file
for each lab, `solutions/labNN_name/matrix.toml`. `--unneeded` runs nothing and lists the tests that no mistake fails.

Only the test classes that name a changed definition of the solution, directly or through other definitions, are run:
the others see the solution's own code.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from labkit.labs.catalog import ROOT, find_lab, find_labs, solution_file, solution_folder
from labkit.labs.manifest import Lab
from labkit.meters.kernels.cache import cached_kernels
from labkit.suite.forked import ForkedRunner, heavy_modules
from labkit.suite.results import TestResult
from labkit.suite.run import OVERTIME, SuiteRun
from labstaff.authoring.mistakes import MATRIX, Mistake, mistakes_of

LONGEST_MESSAGE = 300
CPU_SECONDS = 100.0
"""Of one run, after which no further test is begun: a mistake that never ends would take hours."""


class Row(msgspec.Struct, frozen=True):
    """The result of running the suite on one mistake.

    Attributes:
        task: the task it is made in.
        found_by: the first test of its task that fails with a message that says what it must, `TestClass::test_name`.
        message: the first line of the first test that failed.
        fails: the functions of the suite that failed, `TestClass::test_name`, in the suite's order.
    """

    task: str
    found_by: tuple[str, ...]
    message: str
    fails: tuple[str, ...]


def recorded(lab: Lab) -> dict[str, Row]:
    """The lab's recorded rows by mistake name; none if there is no file."""
    file = solution_folder(lab) / MATRIX
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, Row]) if file.exists() else {}


def written(rows: dict[str, Row]) -> str:
    """The rows as TOML, sorted by name: one line for a message, one for each failing test."""
    parts = []
    for name, row in sorted(rows.items()):
        fails = "".join(f"    {json.dumps(test)},\n" for test in row.fails)
        message = json.dumps(row.message, ensure_ascii=False)
        start = f"[{name}]\ntask = {json.dumps(row.task)}\nfound_by = {json.dumps(row.found_by)}\n"
        parts.append(f"{start}message = {message}\nfails = [\n{fails}]\n")
    return "\n".join(parts)


def suite_tests(lab: Lab) -> list[str]:
    """Every test function of the suite, `TestClass::test_name`, with those that a class inherits."""
    classes = {name: node for name, node in _suite_definitions(lab).items() if isinstance(node, ast.ClassDef)}

    def methods(name: str) -> list[str]:
        if name not in classes:
            return []
        own = [each.name for each in classes[name].body if isinstance(each, ast.FunctionDef)]
        inherited = [each for base in classes[name].bases for each in methods(ast.unparse(base).rpartition(".")[2])]
        left_out = {ast.unparse(target) for each in classes[name].body for target in getattr(each, "targets", [])}
        return [each for each in (*inherited, *own) if each not in left_out]  # `test_x = None` in the class

    found = [f"{name}::{each}" for name in classes if name.startswith("Test") for each in methods(name)]
    return [test for test in dict.fromkeys(found) if "::test" in test]


def unneeded(lab: Lab) -> list[str]:
    """The test functions that no recorded mistake fails."""
    needed = {test for row in recorded(lab).values() for test in row.fails}
    return [test for test in suite_tests(lab) if test not in needed]


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
    """The top-level statements of the lab's tests, and of the contracts that its test classes inherit."""
    contracts = sorted((ROOT / "labkit/testing/contracts").glob("*.py"))
    found: dict[str, ast.AST | None] = {}
    for file in (*contracts, *lab.suite_files):
        found |= _definitions(file.read_text(encoding="utf-8"))
    return found


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


def _names(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    names |= {word for text in texts for word in re.findall(r"\w+", text)}  # tasks called by name
    return names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}  # fixtures


def _dump(node: ast.AST | None) -> str:
    return "" if node is None else ast.dump(node)


def row_of(mistake: Mistake, run: SuiteRun) -> Row:
    """The mistake's row from a run of the suite on it.

    Raises:
        RuntimeError: no test of its task failed and said what it must, or the suite did not run to its end.
    """
    failed = [verdict for verdict in run.results if not verdict.passed]
    stopped = run.died or run.problem.startswith(OVERTIME)
    if not failed or (run.problem and not stopped):
        raise RuntimeError(f"{mistake.lab.label}: {mistake.name}: {run.problem or 'no test fails'}")
    classes = {task.name: task.tests for task in mistake.lab.tasks}

    def name(verdict: TestResult) -> str:
        return f"{classes[verdict.task]}::{verdict.test.split('[')[0]}"

    finding = [name(each) for each in failed if each.task == mistake.task and mistake.says in "\n".join(each.lines)]
    if not finding:
        raise RuntimeError(f"{mistake.lab.label}: {mistake.name}: no test of {mistake.task} says {mistake.says!r}")
    message = " ".join(failed[0].lines[:1])[:LONGEST_MESSAGE]
    return Row(mistake.task, (finding[0],), message, tuple(dict.fromkeys(map(name, failed))))


def run_lab(
    lab: Lab, runner: ForkedRunner, pool: ThreadPoolExecutor, known: dict[str, Row]
) -> tuple[dict[str, Row], list[str]]:
    """Run every mistake without a known row: all rows, and a line for each mistake that is not found."""

    def one(mistake: Mistake) -> Row | str:
        with tempfile.TemporaryDirectory(prefix="mistake-") as folder:
            mistake.write(Path(folder))
            tests = affected_classes(lab, mistake.source())
            try:
                return row_of(mistake, runner.run(lab.label, "--src", folder, tests=tests, cpu_seconds=CPU_SECONDS))
            except RuntimeError as error:
                return str(error)

    mistakes = mistakes_of(lab)
    to_run = [mistake for mistake in mistakes if mistake.name not in known]
    results = dict(zip([mistake.name for mistake in to_run], pool.map(one, to_run), strict=True))
    rows = {mistake.name: known[mistake.name] for mistake in mistakes if mistake.name in known}
    rows |= {name: row for name, row in results.items() if isinstance(row, Row)}
    return rows, [problem for problem in results.values() if isinstance(problem, str)]


def main(
    labs: Annotated[
        list[str] | None, typer.Argument(metavar="[LAB]...", help="numbers; all when none is given")
    ] = None,
    only_unneeded: Annotated[bool, typer.Option("--unneeded", help="list the tests that no mistake fails")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="run only the mistakes that have no row yet")] = False,
    jobs: Annotated[int, typer.Option(help="how many suites run at a time")] = 2,
) -> None:
    """Run every mistake against its suite and record the result; exits with 1 if a mistake is not found."""
    chosen = [find_lab(name) for name in labs or []] or find_labs()
    if only_unneeded:
        for lab in chosen:
            for test in unneeded(lab):
                typer.echo(f"{lab.label} {test}")
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    problems: list[str] = []
    modules = heavy_modules(*(file for lab in chosen for file in lab.suite_files))
    with (
        tempfile.TemporaryDirectory(prefix="kernels-") as folder,
        cached_kernels(Path(folder, "kernels")),
        ForkedRunner(modules) as runner,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for lab in chosen:
            rows, missed = run_lab(lab, runner, pool, recorded(lab) if missing else {})
            problems += missed
            (solution_folder(lab) / MATRIX).write_text(written(rows), encoding="utf-8")
            n_tests = len(suite_tests(lab))
            typer.echo(f"{lab.label}: {len(rows)} mistakes found, {len(unneeded(lab))} of {n_tests} tests unneeded")
    for problem in problems:
        typer.echo(problem, err=True)
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
