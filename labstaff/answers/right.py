"""The alternative solutions of a lab: each differs from the solution and must pass its suite."""

from __future__ import annotations

from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab

RIGHT_PER_LAB = 2


def right_answers(lab: Lab) -> list[Path]:
    """The files of the alternative solutions: each holds only what differs from the solution."""
    return sorted((solution_folder(lab) / "right").glob("*.py"))
