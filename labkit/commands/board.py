"""The board: every lab, how many tasks are done, the points, and the one thing to do next."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.labs.manifest import Lab
from labkit.suite.results import StoredResult, fingerprint, lab_points, load, next_task
from labkit.suite.words import points_text

BAR_WIDTH = 12


def show_board(labs: list[Lab]) -> None:
    """Print the board."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("lab", "title", "tasks", "", "points", "hours"):
        table.add_column(
            column, justify="right" if column in ("points", "hours") else "left", no_wrap=column != "title"
        )
    known = {lab.label: load(lab) for lab in labs}
    for lab in labs:
        results = known[lab.label]
        done = sum(result.done for result in results.values())
        table.add_row(
            lab.number,
            lab.title,
            _bar(done, len(lab.tasks)),
            f"{done} of {len(lab.tasks)}",
            f"{points_text(lab_points(lab, results))} of {points_text(lab.points)}",
            f"{lab.hours:g}",
        )
    console.print("[bold]Attention Labs[/bold]: from N×N bytes to FlashAttention, every claim measured by you\n")
    console.print(table)
    console.print()
    for line in next_lines(labs, known):
        console.print(line, soft_wrap=True)


def next_lines(labs: list[Lab], known: Mapping[str, Mapping[str, StoredResult]]) -> list[Text]:
    """What to do next, in at most three lines."""
    for lab in labs:
        task = next_task(lab, known[lab.label])
        if task is None:
            continue
        home = lab.folder.parent.parent
        where = lab.answer_file.relative_to(home)
        line_number = _line_of(lab, task.name)
        results = known[lab.label]
        lines = [
            Text.assemble(
                "next: ", (task.signature, "bold"), f" in {where}{f', line {line_number}' if line_number else ''}"
            ),
            Text(f"      read {lab.folder.relative_to(home)}/README.md, then: uv run lab check {lab.number}"),
        ]
        if results and any(result.source != fingerprint(lab) for result in results.values()):
            lines.append(Text(f"      {where.name} has changed since it was last checked", style="dim"))
        return lines
    return [Text("Every task is done." if labs else "There is no lab in labs/ yet.")]


def _bar(done: int, total: int) -> Text:
    full = round(BAR_WIDTH * done / total) if total else 0
    return Text.assemble(("█" * full, "green"), ("░" * (BAR_WIDTH - full), "dim"))


def _line_of(lab: Lab, name: str) -> int | None:
    try:
        tree = ast.parse(lab.answer_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    return next((node.lineno for node in tree.body if getattr(node, "name", None) == name), None)
