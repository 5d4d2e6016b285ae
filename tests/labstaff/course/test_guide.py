"""The instructors' guide, command by command: from the tree and the course to the grades that are handed back."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from tests.labstaff.course.submissions import hand_in
from tests.student import LAB, solution_text, stub_text

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "instructors.md"
LEFT_OUT = ("uv sync", "source ", "jupyter lab")
"""What the tests' environment has done, and what waits for a person."""


def blocks() -> list[tuple[str, str]]:
    """The code blocks from Set up to Late work, each with its language."""
    text = GUIDE.read_text(encoding="utf-8")
    text = text[text.index("## Set up") : text.index("## What you can rely on")]
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def run(commands: str, folder: Path) -> str:
    """Run a block's commands in `folder`; the folder in which they end is the last line that is printed."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-euc", f"{commands}\npwd"],
        cwd=folder,
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, f"{commands}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout.strip().splitlines()[-1]


def test_the_guide_runs_from_set_up_to_late_work(tmp_path):
    folder, course = ROOT, tmp_path / "autumn"
    found = blocks()
    assert [language for language, _ in found].count("python") == 1 and len(found) == 8
    for language, text in found:
        if language == "python":
            with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
                config.write(text)
            continue
        lines = [line for line in text.replace("../", f"{tmp_path}/").splitlines() if not line.startswith(LEFT_OUT)]
        if "zip_collect" in text:
            hand_in(course, "ann", solution_text())
            hand_in(course, "bob", stub_text())
            with zipfile.ZipFile(course / "submissions.zip", "w") as packed:
                packed.writestr(f"Cec Ce_103_assignsubmission_file_/{LAB.module}.py", solution_text())
        folder = Path(run("\n".join(lines), folder))
    assert folder == course
    assert (tmp_path / "students" / "AGENTS.md").is_file()
    assert (course / "feedback" / "ann" / LAB.folder.name / "report.html").is_file()
    with (course / "grades.csv").open(encoding="utf-8", newline="") as file:
        grades = {row["student_id"]: row[f"Lab {LAB.number}: {LAB.title}"] for row in csv.DictReader(file)}
    points = f"{LAB.points:g}"
    assert (grades["ann"], grades["bob"], grades["Cec Ce_103"]) == (points, "0", points)
    assert (course / "answers" / "lab01_bits_or_bytes.csv").is_file()
    assert (course / "canvas.csv").is_file() and (course / "moodle.csv").is_file()
