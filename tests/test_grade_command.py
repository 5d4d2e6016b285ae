"""`lab grade` as a command, on right submissions of ordinary style."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from student import quiet_environment

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.labs.manifest import Lab

pytestmark = pytest.mark.sandbox


def submit(submitted: Path, student: str, lab: Lab, source: str) -> Path:
    """Write a submission of `lab`; its folder."""
    folder = submitted / student / lab.folder.name
    (folder / "src").mkdir(parents=True)
    (folder / "src" / lab.answer_file.name).write_text(source, encoding="utf-8")
    return folder


def points(submitted: Path, labs: list[Lab], cwd: Path = ROOT) -> dict[tuple[str, str], dict[str, float]]:
    """What `lab grade` gives, by student and lab's folder, by task; started in the folder `cwd`."""
    table = submitted.parent / "points.csv"
    command = [str(Path(sys.executable).with_name("lab")), "grade", str(submitted), "--csv", str(table)]
    for lab in labs:
        command += ["--lab", lab.number]
    run = subprocess.run(command, cwd=cwd, env=quiet_environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["student"], row["lab"]][row["task"]] = float(row["points"])
    return found


def with_import(lab: Lab, statement: str) -> str:
    """The solution of `lab` with one more import at the top."""
    text = solution_file(lab).read_text(encoding="utf-8")
    assert "\nimport " in text
    return text.replace("\nimport ", f"\n{statement}\nimport ", 1)


def test_importing_an_allowed_library_costs_no_points(tmp_path):
    labs = [find_lab("04"), find_lab("08")]
    statements = {"04": "import matplotlib.pyplot as plt", "08": "from matplotlib.figure import Figure"}
    for lab in labs:
        submit(tmp_path / "submitted", "ann", lab, with_import(lab, statements[lab.number]))
    found = points(tmp_path / "submitted", labs)
    for lab in labs:
        assert found["ann", lab.folder.name] == {task.name: task.points for task in lab.tasks}
