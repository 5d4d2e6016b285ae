"""Derives the source review's allowance of each lab: what its solution and alternative solutions do themselves."""

from __future__ import annotations

import json

from labkit.labs.catalog import find_labs, solution_file
from labkit.labs.manifest import Lab
from labkit.suite.review import ALLOWANCES, findings
from labstaff.authoring.alternatives import alternative_solutions


def derive_allowances() -> str:
    """The text that `labkit.suite.review.ALLOWANCES` must have."""
    return json.dumps({lab.label: _allowed(lab) for lab in find_labs()}, indent=1) + "\n"


def refresh_allowances() -> bool:
    """Write that file; returns whether it has changed."""
    text = derive_allowances()
    if ALLOWANCES.exists() and ALLOWANCES.read_text(encoding="utf-8") == text:
        return False
    ALLOWANCES.write_text(text, encoding="utf-8")
    return True


def _allowed(lab: Lab) -> list[str]:
    texts = [file.read_text(encoding="utf-8") for file in (solution_file(lab), *alternative_solutions(lab))]
    solution, *alternatives = texts
    sources = [solution, *(f"{solution}\n\n{text}" for text in alternatives)]
    return sorted({found.what for source in sources for found in findings(source, lab, run_by_hand=True)})
