"""`lab check`: one run of a lab's suite with a progress bar, and its lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from labkit.commands.counts import count_tables
from labkit.labs.manifest import Lab, Task
from labkit.suite.apart import OnVerdict, run_apart
from labkit.suite.finder import file_problem, platform_problem
from labkit.suite.results import add_up, store, stored
from labkit.suite.review import review
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import Kind, State, Verdict
from labkit.suite.words import line_style, run_lines, unusable_lines
from labkit.trace.offer import can_be_traced

LONG_SECONDS = 15.0
MOST_FINDINGS = 10


def check_lab(lab: Lab, tasks: Sequence[Task] = (), *, everything: bool = False, show_prints: bool = False) -> int:
    """Run the suite of `lab`, show what it says, and return the exit status: 0 when every test passed.

    Args:
        tasks: judge these only; all when empty.
        everything: tell every failure in full.
        show_prints: let what the file prints, and a debugger that it opens, have the terminal.
    """
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)
    if problem := platform_problem(lab) or file_problem(lab.answer_file):
        print_lines(console, unusable_lines(lab, problem))
        return 1
    print_lines(console, review_lines(lab))
    began = time.monotonic()
    run = _run(lab, tasks, show_prints)
    if run.problem:
        console.print(Text(f"{lab.label}: the suite could not be run\n{run.problem}", style="red"))
        return 2
    print_lines(console, run_lines(lab, run.verdicts, everything=everything))
    print_lines(console, trace_lines(lab, run.verdicts))
    for table in count_tables(lab, run.verdicts):
        console.print()
        console.print(table, soft_wrap=False)
    _keep(console, lab, run, 0.0 if tasks else time.monotonic() - began)
    return 0 if all(verdict.passed for verdict in run.verdicts) else 1


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines, each in the style that its words ask for."""
    for line in lines:
        console.print(Text(line, style=line_style(line)))


def trace_lines(lab: Lab, verdicts: Sequence[Verdict]) -> list[str]:
    """Where to look at the memory of tasks that need too much of it."""
    large = {v.task for v in verdicts if v.kind is Kind.SMALL and v.state is State.WRONG}
    tasks = [task for task in lab.tasks if task.name in large and can_be_traced(lab, task)]
    return [f"see its memory: uv run lab trace {lab.number} {task.name}" for task in tasks]


def review_lines(lab: Lab) -> list[str]:
    """What of the student's file the instructor will be shown when it is graded."""
    found = review(lab.answer_file.read_text(encoding="utf-8-sig"), lab)
    if not found:
        return []
    lines = [f"  {each}" for each in found[:MOST_FINDINGS]]
    more = [f"  and {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
    return [f"When {lab.answer_file.name} is graded, your instructor will be shown:", *lines, *more, ""]


def _run(lab: Lab, tasks: Sequence[Task], show_prints: bool) -> SuiteRun:
    tests = [task.tests for task in tasks]
    if show_prints:
        return run_apart(lab, tests=tests, show_prints=True)
    bars = Console(stderr=True)
    if (usual_seconds := stored(lab).suite_seconds) >= LONG_SECONDS and not tasks:
        bars.print(f"{lab.label}: the last run took {usual_seconds:.0f} s", style="dim", highlight=False)
    with progress(bars, lab) as on_verdict:
        return run_apart(lab, tests=tests, on_verdict=on_verdict)


@contextlib.contextmanager
def progress(bars: Console, lab: Lab) -> Iterator[OnVerdict]:
    """A bar for the tests of a run, where `bars` is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=bars, transient=True, disable=not bars.is_terminal) as progress:
        bar = progress.add_task(f"{lab.label} · importing", total=None)

        def on_verdict(verdict: Verdict, n_collected: int) -> None:
            progress.update(bar, advance=1, total=n_collected, description=f"{lab.label} · {verdict.task}")

        yield on_verdict


def _keep(console: Console, lab: Lab, run: SuiteRun, seconds: float) -> None:
    """Keep how long a whole run took; and its results, where no single process has seen all of them."""
    whole = run.n_starts > 1 and len(run.verdicts) == run.n_collected
    try:
        store(lab, add_up(lab, run.verdicts) if whole else {}, suite_seconds=seconds)
    except OSError as error:
        console.print(Text(f"the results of {lab.label} could not be kept: {error.strerror}", style="red"))
