"""The alternative solutions of a lab: each differs from the solution and must pass its suite."""

from __future__ import annotations

from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab

ALTERNATIVES_PER_LAB = 2


def alternative_solutions(lab: Lab) -> list[Path]:
    """Files that hold what differs from the solution."""
    return sorted((solution_folder(lab) / "alternatives").glob("*.py"))
