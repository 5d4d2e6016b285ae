"""Searches the students' files for solution text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab
from labstaff.derive.markers import solution_regions
from labstaff.derive.notebooks import read_report

ALONE, IN_PAIRS, AS_A_WHOLE = 64, 40, 24
"""How many characters, white space aside, make a line telling by itself; two neighbouring lines; a region of one line.
Shorter ones (`return output`, a scale set on an axis) stand in many texts and give nothing away."""


@dataclass(frozen=True)
class Leak:
    """A passage of a solution found in a students' file."""

    file: Path
    passage: str


def find_leaks(labs: Iterable[Lab], files: Iterable[Path]) -> list[Leak]:
    """Every distinctive passage of the labs' solutions found in `files`, ignoring white space.

    Notebooks are searched cell by cell as well as in their JSON. Files that are not text are passed over.
    """
    begun: dict[str, list[tuple[str, str]]] = defaultdict(list)  # one search through a file for thousands of passages
    for passage in {passage for lab in labs for passage in secret_passages(lab)}:
        squeezed = squeeze(passage)
        begun[squeezed[:AS_A_WHOLE]].append((squeezed, passage))
    leaks = []
    for file in files:
        text = squeeze(_text(file))
        places = [at for at in range(len(text)) if text[at : at + AS_A_WHOLE] in begun]
        found = {
            passage
            for at in places
            for squeezed, passage in begun[text[at : at + AS_A_WHOLE]]
            if text.startswith(squeezed, at)
        }
        leaks += [Leak(file, passage) for passage in sorted(found)]
    return leaks


def secret_passages(lab: Lab) -> set[str]:
    """The distinctive passages of the lab's solution and model answers."""
    regions = solution_regions(solution_file(lab).read_text(encoding="utf-8"))
    if (report := solution_folder(lab) / "report.py").exists():
        for cell in read_report(lab, report).cells:
            grading = cell.metadata.get("nbgrader", {})
            if grading.get("solution") and cell.cell_type == "markdown":
                regions.append([line.strip() for line in cell.source.splitlines() if line.strip()])
            elif grading.get("solution"):
                regions += solution_regions(cell.source)
    return {passage for region in regions for passage in _telling(region)}


def _telling(region: list[str]) -> Iterable[str]:
    lines = [line for line in region if not line.startswith(("import ", "from "))]
    singles = AS_A_WHOLE if len(lines) == 1 else ALONE
    yield from (line for line in lines if len(squeeze(line)) >= singles)
    pairs = (f"{first} {second}" for first, second in pairwise(lines))
    yield from (pair for pair in pairs if len(squeeze(pair)) >= IN_PAIRS)


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
