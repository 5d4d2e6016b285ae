"""Derives the stub and the report of each lab from `solutions/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab
from labstaff.derive.markers import MarkerError, clear_solution
from labstaff.derive.notebooks import derive_report


def derived_files(lab: Lab) -> Iterator[tuple[Path, str]]:
    """Every derived file of the lab and its text.

    Raises:
        MarkerError, ReportError: a source from which nothing can be derived safely.
    """
    yield lab.student_file, derive_stub(lab)
    if (source := solution_folder(lab) / "report.py").exists():
        yield lab.folder / "report.ipynb", derive_report(lab, source)


def derive_stub(lab: Lab) -> str:
    """The solution without the text between its markers.

    Raises:
        MarkerError: the markers are wrong, or nothing is left out.
    """
    source = solution_file(lab)
    solution = source.read_text(encoding="utf-8")
    stub = clear_solution(solution, name=f"solutions/{lab.folder.name}/src/{source.name}")
    if stub.count("raise NotImplementedError()") < len(lab.tasks):
        raise MarkerError(f"{source.name}: fewer solution regions than tasks: a solution would be released")
    return stub


def build(lab: Lab) -> list[Path]:
    """Write the lab's derived files; returns those that changed."""
    changed = []
    for path, text in derived_files(lab):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
