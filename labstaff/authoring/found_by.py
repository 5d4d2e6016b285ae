"""Finds the test that each mistake fails first, and writes its name into the mistake: `found_by`.

`python -m labstaff.authoring.found_by [LAB...]` runs all mistakes (about 40 minutes for all labs on two cores), with
`--missing` those that have no `found_by`. Only the test classes that name a changed definition of the solution,
directly or through other definitions, are run: the others see the solution's own code.
"""

from __future__ import annotations

import ast
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
from labkit.suite.run import SuiteRun
from labstaff.authoring.mistakes import Mistake, mistakes_of

CPU_SECONDS = 100.0
"""Of one run, after which no further test is begun: a mistake that never ends would take hours."""


def main(
    labs: Annotated[
        list[str] | None, typer.Argument(metavar="[LAB]...", help="numbers; all when none is given")
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="run only the mistakes that have no found_by yet")] = False,
    jobs: Annotated[int, typer.Option(help="how many suites run at a time")] = 2,
) -> None:
    """Run mistakes against their suites and record what finds them; exits with 1 if a mistake is not found."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [find_lab(name) for name in labs or []] or find_labs()
    mistakes = [each for lab in chosen for each in mistakes_of(lab) if not (missing and each.has_found_by)]
    modules = heavy_modules(*(file for lab in chosen for file in lab.suite_files))
    problems = 0
    with (
        tempfile.TemporaryDirectory(prefix="kernels-") as folder,
        cached_kernels(Path(folder, "kernels")),
        ForkedRunner(modules) as runner,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for mistake, found in zip(mistakes, pool.map(lambda each: find(each, runner), mistakes), strict=True):
            if isinstance(found, str):
                write(mistake, found)
            else:
                problems += 1
                typer.echo(str(found), err=True)
    typer.echo(f"{len(mistakes) - problems} of {len(mistakes)} mistakes are found")
    raise typer.Exit(1 if problems else 0)


def find(mistake: Mistake, runner: ForkedRunner) -> str | LookupError:
    """Run the suite on a mistake: the test that finds it, or an error that says that none does."""
    with tempfile.TemporaryDirectory(prefix="mistake-") as folder:
        mistake.write(Path(folder))
        tests = affected_classes(mistake.lab, mistake.source())
        run = runner.run(mistake.lab.label, "--src", folder, tests=tests, cpu_seconds=CPU_SECONDS)
    try:
        return finding_test(mistake, run)
    except LookupError as error:
        return error


def finding_test(mistake: Mistake, run: SuiteRun) -> str:
    """The first test of the mistake's task that fails with a message that says what it must, `TestClass::test_name`.

    Raises:
        LookupError: there is none, or the suite did not run to its end.
    """
    if run.ended.is_no_verdict:
        raise LookupError(f"{mistake.lab.label}: {mistake.name}: {ending_text(run.ended)}")
    for result in run.results:
        says = mistake.says in "\n".join(result_lines(result))
        if result.task == mistake.task and not result.passed and says:
            tests = next(task.tests for task in mistake.lab.tasks if task.name == result.task)
            return f"{tests}::{result.test.partition('[')[0]}"
    raise LookupError(f"{mistake.lab.label}: {mistake.name}: no test of {mistake.task} fails and says {mistake.says!r}")


def write(mistake: Mistake, found_by: str) -> None:
    """Write `found_by` into the mistake's table, before its edit."""
    text = mistake.file.read_text(encoding="utf-8")
    start = text.index(f'name = "{mistake.name}"\n')
    end = re.compile(r"^(edit|replace) = ", re.MULTILINE).search(text, start)
    assert end is not None  # `mistakes_of` has read it
    table = re.sub(r"^found_by = .*\n", "", text[start : end.start()], flags=re.MULTILINE)
    text = f'{text[:start]}{table}found_by = "{found_by}"\n{text[end.start() :]}'
    mistake.file.write_text(text, encoding="utf-8")


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


if __name__ == "__main__":
    typer.run(main)
