"""Refuses to hand out an assignment that holds more than it must, or a passage of a solution."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab
from labstaff.course.paths import NOTEBOOK
from labstaff.derive.build import derive_stub
from labstaff.derive.notebooks import derive_report
from labstaff.release.leaks import find_leaks


class LeakError(RuntimeError):
    """Why an assignment must not be released; the message names files and passages."""


def assignment_files(lab: Lab) -> dict[str, str]:
    """What a student gets of `lab` besides the notebook: names and texts."""
    return {
        "README.md": (lab.folder / "README.md").read_text(encoding="utf-8"),
        f"src/{lab.module}.py": derive_stub(lab),
    }


def check_release(lab: Lab, folder: Path, texts: Mapping[str, str] | None = None) -> None:
    """Compare the files in `folder` with what may be there, and search them for the lab's solution.

    Args:
        folder: the released assignment.
        texts: files that are about to be written there, by name, with their text.

    Raises:
        LeakError: a file more or fewer than expected, an answer that is not the stub, or a passage of a solution.
    """
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} | set(texts or {})
    expected = {NOTEBOOK, *assignment_files(lab)}
    if found != expected:
        extra, missing = ", ".join(sorted(found - expected)), ", ".join(sorted(expected - found))
        raise LeakError(f"{lab.folder.name}: not to be released: {extra or 'nothing'}; missing: {missing or 'nothing'}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in (texts or {}).items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        files = {name: Path(scratch if texts and name in texts else folder) / name for name in sorted(found)}
        if leaks := find_leaks([lab], files.values()):
            told = "\n".join(f"  {leak.file.name}: {leak.passage}" for leak in leaks[:10])
            raise LeakError(f"{lab.folder.name}: {len(leaks)} passages of solutions would be released\n{told}")
        _compare(lab, json.loads(files[NOTEBOOK].read_text(encoding="utf-8")))


def _compare(lab: Lab, released: dict) -> None:
    """Cell by cell with the report that `lab build` derives: nbgrader's way of clearing must have the same result."""
    derived = json.loads(derive_report(lab, solution_folder(lab) / "report.py"))
    texts = [["".join(cell["source"]).strip() for cell in notebook["cells"]] for notebook in (released, derived)]
    if texts[0] != texts[1]:
        at = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
        raise LeakError(f"{lab.folder.name}: {NOTEBOOK}: cell {at} is not the one that students are to get")
