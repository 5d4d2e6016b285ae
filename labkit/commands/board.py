"""The board: every lab, how many tasks are done, the points, and what to do next."""

from __future__ import annotations

import ast
import datetime
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.chat.places import command_for
from labkit.labs.manifest import Lab
from labkit.review.stored import load_review
from labkit.suite.finder import file_problem, platform_problem
from labkit.suite.messages import points_text
from labkit.suite.results import StoredResult, fingerprint, lab_points, load, next_task, unreadable

BAR_WIDTH = 12
DUE_FILE = "due.toml"
"""Next to `labs/`, where there is one: lines such as `lab01 = 2027-03-01`, a date or a date with a time."""


def show_board(labs: list[Lab]) -> None:
    """Print the board."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    due, due_problem = due_dates(labs[0].folder.parent.parent) if labs else ({}, "")
    for column in ("lab", "title", "tasks", "", "points", "report", "review", "hours", *(["due"] if due else [])):
        justify = "right" if column in ("points", "report", "review", "hours") else "left"
        table.add_column(column, justify=justify, no_wrap=column != "title")  # type: ignore[arg-type]
    known = {lab.label: load(lab) for lab in labs}
    for lab in labs:
        results = known[lab.label]
        done = sum(result.done for result in results.values())
        table.add_row(
            lab.number,
            f"{lab.title} (draft)" if lab.draft else lab.title,
            _bar(done, len(lab.tasks)),
            f"{done} of {len(lab.tasks)}",
            f"{points_text(lab_points(lab, results))} of {points_text(lab.points)}",
            points_text(lab.report_points),
            _review_text(lab),
            f"{lab.hours:g}",
            *([due.get(lab.label, "")] if due else []),
        )
    console.print("[bold]Attention Labs[/bold]: from N×N bytes to FlashAttention, every claim checked by you\n")
    console.print(table)
    console.print()
    if due_problem:
        console.print(Text(due_problem, style="red"), soft_wrap=True)
    for line in [*problem_lines(labs), *next_lines(labs, known), *model_lines(labs, known)]:
        console.print(line, soft_wrap=True)


def due_dates(root: Path) -> tuple[dict[str, str], str]:
    """The due dates in `DUE_FILE` by the labs' labels, as they are shown, and why they cannot be read."""
    try:
        found = tomllib.loads((root / DUE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, f"{DUE_FILE} cannot be read: {error}"
    if wrong := [name for name, date in found.items() if not isinstance(date, datetime.date)]:
        return {}, f"{DUE_FILE}: {wrong[0]} is no date, such as 2027-03-01 or 2027-03-01 23:59:00"
    return {name: str(date) for name, date in found.items()}, ""


def problem_lines(labs: list[Lab]) -> list[Text]:
    """Why labs' tests cannot run or their results cannot be read: one line each, for all labs that share it."""
    found: dict[str, list[str]] = {}
    for lab in labs:
        if problem := platform_problem(lab) or file_problem(lab.student_file):
            found.setdefault(problem, []).append(lab.label)
        if problem := unreadable(lab):
            found.setdefault(f"{problem}: uv run lab check {lab.number} writes it again", []).append(lab.label)
    return [
        Text(f"{', '.join(labels)}: {'each ' if len(labels) > 1 else ''}{problem}", style="red")
        for problem, labels in found.items()
    ]


def next_lines(labs: list[Lab], known: Mapping[str, Mapping[str, StoredResult]]) -> list[Text]:
    """What to do next, in at most three lines."""
    for lab in labs:
        task = next_task(lab, known[lab.label])
        if task is None:
            continue
        root = lab.folder.parent.parent
        line_number = _line_of(lab, task.name)
        where = f" in {lab.student_file.relative_to(root)}" + (f", line {line_number}" if line_number else "")
        handout = lab.folder.relative_to(root) / "README.md"
        lines = [
            Text.assemble("next: ", (task.signature, "bold"), where),
            Text(f"      read {handout}, then: uv run lab check {lab.number}"),
        ]
        if any(result.source != fingerprint(lab) for result in known[lab.label].values()):
            lines.append(Text(f"      {lab.student_file.name} has changed since it was last checked", style="dim"))
        return lines
    if not labs:
        return [Text("There is no lab in labs/ yet.")]
    reports = ", ".join(str(lab.folder.relative_to(lab.folder.parent.parent) / "report.ipynb") for lab in labs)
    return [Text("★ Every task is done.", style="green"), Text(f"  Only the reports are left: {reports}")]


def model_lines(labs: list[Lab], known: Mapping[str, Mapping[str, StoredResult]]) -> list[Text]:
    """The command that runs the last finished lab in a real language model, if it has one."""
    done = [lab for lab in labs if next_task(lab, known[lab.label]) is None]
    commands = [(lab, command) for lab in done if (command := command_for(lab.number))]
    if not commands:
        return []
    lab, command = commands[-1]
    return [Text.assemble(f"Lab {lab.number} is done: a real language model runs on it: ", (command, "bold"))]


def _bar(done: int, total: int) -> Text:
    full = round(BAR_WIDTH * done / total) if total else 0
    return Text.assemble(("█" * full, "green"), ("░" * (BAR_WIDTH - full), "dim"))


def _review_text(lab: Lab) -> str:
    """How many wrong versions the student's own tests find; "" before the first `lab review`."""
    review = load_review(lab)
    return f"{sum(review.n_found.values())} of {review.n_wrong}" if review.n_wrong else ""


def _line_of(lab: Lab, name: str) -> int | None:
    try:
        tree = ast.parse(lab.student_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    return next((node.lineno for node in tree.body if getattr(node, "name", None) == name), None)
