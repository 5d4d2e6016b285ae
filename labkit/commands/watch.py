"""`lab watch`: the suite again on every save, in a child forked from a parent that keeps the imports warm."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain

from rich.console import Console
from rich.text import Text

from labkit.commands.check import print_lines
from labkit.labs.manifest import Lab
from labkit.suite.apart import to_the_end
from labkit.suite.results import TaskResult, add_up, fingerprint, store
from labkit.suite.warm import WarmRunner, heavy_modules
from labkit.suite.words import change_lines, line_style, run_lines

DEBOUNCE_MS = 100


def watch_lab(lab: Lab, saves: Iterable[object] | None = None, console: Console | None = None) -> None:
    """Run the suite of `lab`, and again for each item of `saves`; by default, each change in its `src/` folder.

    A run with other results than the one before says what changed first.
    """
    from watchfiles import watch

    console = console or Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)
    if saves is None:
        saves = watch(lab.answer_file.parent, debounce=DEBOUNCE_MS)
    before: dict[str, TaskResult] = {}
    where = lab.answer_file.relative_to(lab.folder.parent.parent)
    console.print(f"watching {where}: save it to run again, Ctrl-C to end", style="dim")
    with WarmRunner(heavy_modules(lab.suite_file, lab.answer_file)) as runner:
        for _ in chain([None], saves):
            judged = None
            while judged != (judged := fingerprint(lab)):  # saved again while it ran: nobody watched for that
                before = _once(runner, lab, before, console)


def _once(runner: WarmRunner, lab: Lab, before: dict[str, TaskResult], console: Console) -> dict[str, TaskResult]:
    run = to_the_end(lambda options, _: runner.run(lab.label, *options))
    if run.problem:
        console.print(Text(f"{lab.label}: {run.problem}", style="red"))
        return before
    now = add_up(lab, run.verdicts)
    if run.n_starts > 1 and len(run.verdicts) == run.n_collected:
        store(lab, now)  # no single process has seen all of it
    console.rule(style="dim")
    print_lines(console, run_lines(lab, run.verdicts, more=f"uv run lab check {lab.number} -v"))
    changes = change_lines(lab, before, now)
    if before:
        for line in changes or ["no change in what passes"]:
            console.print(Text(line, style=line_style(line)))
    return now
