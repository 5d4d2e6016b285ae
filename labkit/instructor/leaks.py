"""Looks for solution text in what students are given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.finder import solution_answer, solution_folder
from labkit.instructor.markers import solution_lines
from labkit.instructor.notebooks import read_report
from labkit.manifest import Lab

TELLING_LENGTH = 24
"""A shorter line (`return output`) stands in many texts and gives nothing away."""


@dataclass(frozen=True)
class Leak:
    """A line of a solution, found where students read."""

    file: Path
    line: str


def find_leaks(labs: Iterable[Lab], files: Iterable[Path]) -> list[Leak]:
    """Every telling line of the labs' solutions that stands in `files`, white space aside.

    Notebooks are searched cell by cell as well as in their JSON. Files that are not text are passed over.
    """
    secrets = sorted({line for lab in labs for line in secret_lines(lab)})
    leaks = []
    for file in files:
        text = squeeze(_text(file))
        leaks += [Leak(file, line) for line in secrets if squeeze(line) in text]
    return leaks


def secret_lines(lab: Lab) -> set[str]:
    """The telling lines of the lab's solution and model answers."""
    lines = set()
    for path in solution_answer(lab).files:
        lines |= set(solution_lines(path.read_text(encoding="utf-8")))
    if (report := solution_folder(lab) / "report.py").exists():
        for cell in read_report(lab, report).cells:
            grading = cell.metadata.get("nbgrader", {})
            if grading.get("solution") and cell.cell_type == "markdown":
                lines |= {line.strip() for line in cell.source.splitlines()}
            elif grading.get("solution"):
                lines |= set(solution_lines(cell.source))
    return {
        line for line in lines if len(squeeze(line)) >= TELLING_LENGTH and not line.startswith(("import ", "from "))
    }


def squeeze(text: str) -> str:
    """`text` without white space, so that a change of layout hides nothing."""
    return re.sub(r"\s+", "", text)


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
    if file.suffix == ".ipynb":
        text += "\n".join(_strings(json.loads(text)))
    return text


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield "".join(item for item in value if isinstance(item, str))
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
