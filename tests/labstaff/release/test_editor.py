"""A student's tree in an editor: its test panel shows labs, tasks, tests, and failure messages.

VS Code's panel shows what pytest's hooks report: the tree of the tests that are collected, and the text of a failure,
which is also in the file of `--junitxml`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from labkit.labs.catalog import ROOT, find_labs
from labstaff.authoring.mistakes import find_mistake
from labstaff.release.tree import release
from tests.student import quiet_environment

pytestmark = pytest.mark.slow

LABS = [lab for lab in find_labs() if not lab.draft]
LAB = LABS[0]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A released tree in a fresh folder."""
    out = tmp_path_factory.mktemp("released") / "course"
    release(ROOT, out)
    return out


def run(released, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the tree."""
    command = [sys.executable, "-X", "importtime", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**quiet_environment(), "PYTHONPATH": str(released)}
    return subprocess.run(command, cwd=released, env=environment, capture_output=True, text=True, timeout=300)


def test_the_settings_collect_every_task(released):
    settings = json.loads((released / ".vscode" / "settings.json").read_text(encoding="utf-8"))
    assert settings["python.testing.pytestEnabled"] is True
    done = run(released, *settings["python.testing.pytestArgs"], "--collect-only", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout.lower()
    for lab in LABS:
        for task in lab.tasks:
            assert f"labs/{lab.folder.name}/tests/test_{lab.module}.py::{task.tests}::" in done.stdout


def test_a_lab_without_torch_is_collected_without_torch(released):
    """Importing torch takes longest, and the panel is refreshed on every save."""
    numpy_labs = [f"labs/{lab.folder.name}" for lab in LABS if "torch" not in lab.suite_file.read_text()]
    done = run(released, *numpy_labs, "--collect-only", "-s")
    assert done.returncode == 0
    assert "numpy" in done.stderr and " torch\n" not in done.stderr


def test_a_failure_says_what_a_student_would_read(released, tmp_path):
    mistake = find_mistake(LAB, "attention_without_scale")
    mistake.write(tmp_path)
    test = f"labs/{LAB.folder.name}/tests/test_{LAB.module}.py::{mistake.found_by[0]}"
    run(released, test, "--src", str(tmp_path), "--junitxml", str(tmp_path / "panel.xml"))
    message = next(ElementTree.parse(tmp_path / "panel.xml").iter("failure")).text
    assert mistake.says in message
    assert "Traceback" not in message
    assert len(message.splitlines()) <= 12
