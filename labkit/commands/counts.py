"""`lab board NN`: one's own counts beside the course's, run by run."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.commands.check import print_lines, progress, review_lines
from labkit.labs.manifest import Lab
from labkit.suite import counts
from labkit.suite.apart import run_apart
from labkit.suite.counts import COLUMNS, Board, Column, Counts, Run
from labkit.suite.finder import file_problem, platform_problem
from labkit.suite.results import fingerprint
from labkit.suite.verdict import State, Verdict
from labkit.suite.words import run_lines, unusable_lines

ONLY_THE_BOARD = ("-m", "board")
NOTHING = "–"
NARROW = 90
"""Columns of a terminal on which a table's lines would break: there each number has a line of its own."""
NOT_A_RUN = (State.NOT_STARTED, State.UNUSABLE, State.MISSING)
"""What says that there is nothing to count yet: it is told, and not kept."""


def show_counts(lab: Lab, *, as_json: bool = False) -> int:
    """Run what `lab`'s board counts, keep the run, show the board, and return the exit status: 0 when all was counted.

    Raises:
        NoBoard: the lab has none.
    """
    board = counts.read_board(lab)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    told = errors if as_json else Console(soft_wrap=True, highlight=False, width=width)
    if problem := platform_problem(lab) or file_problem(lab.answer_file):
        print_lines(told, unusable_lines(lab, problem))
        return 1
    print_lines(told, review_lines(lab))
    with progress(Console(stderr=True), lab) as on_verdict:
        judged = run_apart(lab, *ONLY_THE_BOARD, on_verdict=on_verdict)
    if judged.problem:
        told.print(Text(f"{lab.label}: the suite could not be run\n{judged.problem}", style="red"))
        return 2
    runs = _with_this_one(lab, judged.verdicts, errors)
    passed = all(verdict.passed for verdict in judged.verdicts)
    if as_json:
        print(json.dumps(as_data(lab, board, runs), indent=1, ensure_ascii=False))
    else:
        for trace in board.traces:
            print_lines(told, [f"{trace}: {board.traces[trace]}"])
            print_rows(told, rows(lab, board, trace, runs))
            print_lines(told, [*broken_lines(trace, runs), ""])
        print_lines(told, legend_lines(runs))
    if nothing_yet := [verdict for verdict in judged.verdicts if verdict.state in NOT_A_RUN]:
        told_of_task = takewhile(bool, run_lines(lab, nothing_yet))  # points are nothing that a part of a suite knows
        print_lines(told, ["", *told_of_task, f"next: uv run lab check {lab.number}"])
    return 0 if passed else 1


class Row(NamedTuple):
    """One line of a board: whose it is, and a cell a column."""

    name: str
    cells: list[Text]
    style: str = ""


def rows(lab: Lab, board: Board, trace: str, runs: Sequence[Run]) -> list[Row]:
    """The course's references, the best run and the last one, and what the last has changed."""
    digest = counts.board_digest(lab)
    found = [Row(each.name, _cells(each.counts.get(trace))) for each in board.references]
    if top := counts.best(runs, trace, digest):
        found.append(Row(_own(runs, top, "your best"), _cells(top.counts[trace]), "bold"))
    if runs:
        found.append(Row(_own(runs, runs[-1], "your last"), _cells(runs[-1].counts.get(trace))))
    if changes := _changes(trace, runs):
        found.append(Row("against the run before", changes))
    return found


def print_rows(console: Console, found: Sequence[Row]) -> None:
    """Print them as a table; where that would break its lines, a line for each number."""
    if console.width < NARROW:
        for row in found:
            console.print(Text(row.name, style=row.style))
            for column, cell in zip(COLUMNS, row.cells, strict=True):
                console.print(Text.assemble(f"  {spoken(column)}: ", cell))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    for row in found:
        table.add_row(Text(row.name), *row.cells, style=row.style)
    console.print(table, soft_wrap=False)


def spoken(column: Column) -> str:
    """A column's title on one line."""
    return column.title.replace("\n", " ")


def broken_lines(trace: str, runs: Sequence[Run]) -> list[str]:
    """What the last run broke on `trace`, in the suite's words."""
    said = runs[-1].broke.get(trace, []) if runs else []
    return [f"  ✗ {line}" if not i else f"    {line}" for i, line in enumerate(said)]


def legend_lines(runs: Sequence[Run]) -> list[str]:
    """How runs are compared, and what is to be known of the last two."""
    lines = [
        "Best is who has most requests in time, of several who reads fewest bytes a token, and so on to the right."
    ]
    if runs:
        lines.append(f"Your runs so far: {len(runs)}, from {runs[0].day} to {runs[-1].day}.")
    if len(runs) > 1 and runs[-1].file == runs[-2].file:
        lines.append("Your file is the one of the run before.")
    if len(runs) > 1 and runs[-1].board != runs[-2].board:
        lines.append("The course has changed since the run before: earlier runs are kept, and not compared.")
    return lines


def as_data(lab: Lab, board: Board, runs: Sequence[Run]) -> dict[str, Any]:
    """The board as plain data: the traces, the references, every run, and the number of the best on each trace."""
    tops = {trace: counts.best(runs, trace, counts.board_digest(lab)) for trace in board.traces}
    return {
        "lab": lab.label,
        "traces": board.traces,
        "references": [{"name": each.name, "counts": each.counts} for each in board.references],
        "runs": [
            {"day": each.day, "file": each.file, "labkit": each.labkit, "counts": each.counts, "broke": each.broke}
            for each in runs
        ],
        "best": {trace: _place(runs, run) for trace, run in tops.items() if run},
    }


def number(value: Fraction, *, signed: bool = False) -> str:
    """A value with its thousands apart; a ratio to a tenth."""
    sign = "+" if signed else ""
    return f"{int(value):{sign},}" if value.denominator == 1 else f"{float(value):{sign},.1f}"


def _cells(found: Counts | None) -> list[Text]:
    values = [column.of(found or {}) for column in COLUMNS]
    return [Text(NOTHING if value is None else number(value)) for value in values]


def _changes(trace: str, runs: Sequence[Run]) -> list[Text]:
    """What the last run has changed against the one before; nothing where they cannot be compared."""
    if len(runs) < 2:
        return []
    before, last = runs[-2:]
    if before.board != last.board or trace not in before.counts or trace not in last.counts:
        return []
    return [_change_cell(column, before.counts[trace], last.counts[trace]) for column in COLUMNS]


def _change_cell(column: Column, before: Counts, now: Counts) -> Text:
    was, is_now = column.of(before), column.of(now)
    if was is None or is_now is None:
        return Text(NOTHING)
    if was == is_now:
        return Text("=", style="dim")
    by = is_now - was
    style = ("green" if by * column.better > 0 else "red") if column.better else ""
    return Text(number(by, signed=True), style=style)


def _own(runs: Sequence[Run], run: Run, what: str) -> str:
    return f"{what}, run {_place(runs, run)}"


def _place(runs: Sequence[Run], run: Run) -> int:
    """Its number among the runs, from 1."""
    return next(i for i, each in enumerate(runs, 1) if each is run)


def _with_this_one(lab: Lab, verdicts: Sequence[Verdict], errors: Console) -> list[Run]:
    """The runs so far and this one, which is kept; what keeps it from being kept is said."""
    try:
        before = _history(lab, errors)
        if all(verdict.state in NOT_A_RUN for verdict in verdicts):
            return before
    except OSError as error:
        errors.print(Text(f"the history of {lab.label} cannot be read: {error.strerror}", style="red"))
        return [_run_of(lab, verdicts)]
    runs = [*before, _run_of(lab, verdicts)]
    try:
        counts.keep_runs(lab, runs)
    except OSError as error:
        errors.print(Text(f"this run of {lab.label} could not be kept: {error.strerror}", style="red"))
    return runs


def _history(lab: Lab, errors: Console) -> list[Run]:
    """The runs so far. A file that holds something else is moved aside, and said."""
    try:
        return counts.kept_runs(lab)
    except ValueError:
        aside = counts.set_aside(lab)
        errors.print(Text(f"the history of {lab.label} begins anew: what was there is none, and is now {aside}"))
        return []


def _run_of(lab: Lab, verdicts: Sequence[Verdict]) -> Run:
    """A run as it is kept: what each trace's test has counted, or what it said."""
    return Run(
        day=datetime.date.today().isoformat(),
        file=fingerprint(lab),
        board=counts.board_digest(lab),
        labkit=_labkit_version(),
        counts={counts.trace_of(each.test): each.counts for each in verdicts if each.counts},
        broke={counts.trace_of(each.test): list(each.lines) for each in verdicts if not each.passed},
    )


def _labkit_version() -> str:
    try:
        return version("attention-labs")
    except PackageNotFoundError:
        return ""
