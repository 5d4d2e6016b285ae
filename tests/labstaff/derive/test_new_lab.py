"""A new lab passes its own checks; a lab that cannot be made leaves no files."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labstaff.authoring.mistakes import mistakes_of
from labstaff.derive.build import derived_files
from labstaff.derive.new_lab import NewLabError, new_lab
from tests.student import quiet_environment


@pytest.fixture
def house(tmp_path):
    """A repository with the tools, a page of chapters, and one lab."""
    for name in ("labkit", "labstaff", "pyproject.toml", "labs/lab01_memory_profiling", "docs/README.md"):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, target)
    return tmp_path


@pytest.mark.slow
def test_a_new_lab_passes_its_own_checks(house):
    new_lab(house, "42", "deep_thought")
    lab = find_lab("42", house)
    assert lab.draft
    (mistake,) = mistakes_of(lab)
    for path, text in derived_files(lab):
        assert path.read_text(encoding="utf-8") == text
    (house / "wrong").mkdir()
    mistake.write(house / "wrong")
    for options, says in [
        (["--solutions"], "1 of 1 tasks done, 10 of 10 points"),
        ([], "first_task · not implemented yet — start here"),
        (["--src", str(house / "wrong")], "That is exactly what comes out when nothing is added"),
    ]:
        command = [sys.executable, "-m", "pytest", str(lab.folder), "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=house, env=quiet_environment(), timeout=120)
        assert says in done.stdout, done.stdout + done.stderr
    rows = [line for line in (house / "docs/README.md").read_text(encoding="utf-8").splitlines() if ".md) |" in line]
    assert [line for line in rows if line.startswith("| ")][-1].startswith("| 42 | [Deep thought](42_deep_thought.md)")


@pytest.mark.parametrize(
    ("number", "name", "says"),
    [
        ("1", "other", "lab01_memory_profiling is there already"),
        ("42", "profiling", "lab01_memory_profiling is there already"),
        ("42", "Ring", "a name like ring_attention, not '42' and 'Ring'"),
        ("x", "ring", "a number like 14"),
    ],
)
def test_what_cannot_be_made_leaves_nothing(house, number, name, says):
    before = sorted(house.rglob("*"))
    with pytest.raises(NewLabError, match=says):
        new_lab(house, number, name)
    assert sorted(house.rglob("*")) == before
