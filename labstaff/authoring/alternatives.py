"""The alternative solutions of a lab: each differs from the solution and must pass its suite."""

from __future__ import annotations

from pathlib import Path

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab

ALTERNATIVES_PER_LAB = 2


def alternative_solutions(lab: Lab) -> list[Path]:
    """Files that hold what differs from the solution."""
    return sorted((solution_folder(lab) / "alternatives").glob("*.py"))


def variant_text(lab: Lab, variant: Path) -> str:
    """The solution with the functions of `variant`, a file that holds only what differs, instead of its own."""
    texts = [file.read_text(encoding="utf-8") for file in (solution_file(lab), variant)]
    return "\n\n".join(texts)
