"""`lab check`: one run of a lab's suite with a progress bar, and its lines."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from labkit.labs.manifest import Lab
from labkit.suite.run import run_suite
from labkit.suite.verdict import Verdict
from labkit.suite.words import line_style, run_lines


def check_lab(lab: Lab, *, everything: bool = False) -> int:
    """Run the suite of `lab`, show what it says, and return the exit status: 0 when every test passed."""
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bars = Console(stderr=True)
    with Progress(*columns, console=bars, transient=True, disable=not bars.is_terminal) as progress:
        bar = progress.add_task(f"{lab.label} · importing", total=None)

        def on_verdict(verdict: Verdict, n_collected: int) -> None:
            progress.update(bar, advance=1, total=n_collected, description=f"{lab.label} · {verdict.task}")

        run = run_suite(lab, on_verdict=on_verdict)
    if run.problem:
        console.print(Text(f"{lab.label}: the suite could not be run\n{run.problem}", style="red"))
        return 2
    print_run(console, lab, run.verdicts, everything=everything)
    return 0 if all(verdict.passed for verdict in run.verdicts) else 1


def print_run(console: Console, lab: Lab, verdicts: list[Verdict], *, everything: bool = False) -> None:
    """Print the lines of a run."""
    for line in run_lines(lab, verdicts, everything=everything):
        console.print(Text(line, style=line_style(line)))
