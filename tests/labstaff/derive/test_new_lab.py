"""A lab that has just been made passes its own check; one that cannot be made leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labstaff.answers.mistakes import mistakes_of
from labstaff.derive.build import derived_files
from labstaff.derive.new_lab import NewLabError, new_lab
from tests.student import quiet_environment


@pytest.fixture
def house(tmp_path):
    """A repository with the tools and a page of chapters, and one lab."""
    for name in ("labkit", "labstaff", "pyproject.toml", "labs/lab01_memory_profiling", "docs/README.md"):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, target)
    return tmp_path


def test_a_new_lab_passes_its_own_check(house):
    written = new_lab(house, "42", "deep_thought", ["ponder", "Answer"])
    assert len(written) <= 20
    lab = find_lab("42", house)
    assert lab.draft
    assert [mistake.name for mistake in mistakes_of(lab)] == ["ponder_adds_nothing", "answer_adds_nothing"]
    for path, text in derived_files(lab):
        assert path.read_text(encoding="utf-8") == text
    wrong = house / "wrong"
    wrong.mkdir()
    (wrong / "deep_thought.py").write_text(mistakes_of(lab)[0].source(), encoding="utf-8")
    for options, says in [
        (["--solutions"], "2 of 2 tasks done, 20 of 20 points"),
        ([], "ponder · not implemented yet — start here"),
        (["--src", str(wrong)], "That is exactly what comes out when nothing is added"),
    ]:
        command = [sys.executable, "-m", "pytest", str(lab.folder), "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=house, env=quiet_environment(), timeout=120)
        assert says in done.stdout, done.stdout + done.stderr
    rows = [line for line in (house / "docs/README.md").read_text(encoding="utf-8").splitlines() if ".md) |" in line]
    assert [line for line in rows if line.startswith("| ")][-1].startswith("| 42 | [Deep thought](42_deep_thought.md)")


@pytest.mark.parametrize(
    ("number", "name", "tasks", "says"),
    [
        ("01", "other", ["a"], "lab01_memory_profiling is there already"),
        ("42", "profiling", ["a"], "lab01_memory_profiling is there already"),
        ("42", "Ring", ["a"], "a name like ring_attention, not 'Ring'"),
        ("x", "ring", ["a"], "a number of two digits"),
        ("42", "ring", [], "there is none"),
        ("42", "ring", ["a b"], "tasks are Python names, each once: a b"),
    ],
)
def test_what_cannot_be_made_leaves_nothing(house, number, name, tasks, says):
    before = sorted(house.rglob("*"))
    with pytest.raises(NewLabError, match=says):
        new_lab(house, number, name, tasks)
    assert sorted(house.rglob("*")) == before
