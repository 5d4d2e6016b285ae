"""A lab whose student's file holds a given text, where `student_module` finds it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.labs.manifest import Lab


def student_lab(monkeypatch: pytest.MonkeyPatch, root: Path, number: str, edit: tuple[str, str] | None = None) -> Lab:
    """The lab with its solution as the student's file, in which a text that occurs once may be replaced."""
    real = find_lab(number)
    source = solution_file(real).read_text(encoding="utf-8")
    if edit is not None:
        assert source.count(edit[0]) == 1, edit[0]
        source = source.replace(*edit)
    lab = msgspec.structs.replace(real, folder=root / "labs" / real.folder.name)
    lab.student_file.parent.mkdir(parents=True)
    lab.student_file.write_text(source, encoding="utf-8")
    monkeypatch.setattr("labkit.notebook.find_lab", lambda key: lab)
    return lab
