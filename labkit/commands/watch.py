"""`lab watch`: the suite again on every save, in a process forked from one that has everything imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain

from rich.console import Console
from rich.text import Text

from labkit.commands.check import Progress, interrupted_lines, print_lines
from labkit.labs.manifest import Lab, Task
from labkit.suite.apart import ForkedRuns
from labkit.suite.results import TaskResult, add_up, fingerprint
from labkit.suite.run import SuiteRun
from labkit.suite.warm import heavy_modules
from labkit.suite.words import change_lines, line_style, run_lines

DEBOUNCE_MS = 100


def watch_lab(
    lab: Lab,
    tasks: Sequence[Task] = (),
    *,
    first_failure: bool = False,
    saves: Iterable[object] | None = None,
    console: Console | None = None,
) -> None:
    """Run the suite of `lab`, and again for each item of `saves`; by default, each change in its `src/` folder.

    A run with other results than the one before says what changed. `tasks` and `first_failure` as in `check_lab`.

    Raises:
        KeyboardInterrupt: Ctrl-C, also while the suite runs.
    """
    from watchfiles import watch

    console = console or Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)
    if saves is None:
        saves = watch(lab.answer_file.parent, debounce=DEBOUNCE_MS)
    before: dict[str, TaskResult] = {}
    where = lab.answer_file.relative_to(lab.folder.parent.parent)
    console.print(f"watching {where}: save it to run again, Ctrl-C to end", style="dim")
    runs = ForkedRuns(lab, heavy_modules(*lab.suite_files, lab.answer_file))
    options = ["-x"] if first_failure else []
    for _ in chain([None], saves):
        judged = None
        while judged != (judged := fingerprint(lab)):  # saved again while it ran: nobody watched for that
            progress = Progress(lab)
            with progress.shown(Console(stderr=True)):
                run = runs.run(*options, tests=[task.tests for task in tasks], listener=progress)
            if run.interrupted:
                print_lines(console, interrupted_lines("lab watch", run, progress))
                print_lines(console, run_lines(lab, run.verdicts, whole_suite=run.collected))
                raise KeyboardInterrupt
            before = _show(run, lab, before, console)


def _show(run: SuiteRun, lab: Lab, before: dict[str, TaskResult], console: Console) -> dict[str, TaskResult]:
    if not run.verdicts:
        console.print(Text(f"{lab.label}: {run.problem}", style="red"))
        return before
    console.rule(style="dim")
    more = f"uv run lab check {lab.number} -v"
    print_lines(console, run_lines(lab, run.verdicts, whole_suite=run.collected, more=more))
    if len(run.verdicts) < run.n_collected:
        return before
    now = add_up(lab, run.verdicts)
    if before:
        for line in change_lines(lab, before, now) or ["no change in what passes"]:
            console.print(Text(line, style=line_style(line)))
    return now
