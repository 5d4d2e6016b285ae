"""A student's tree in an editor: its test panel shows labs, tasks, tests, and failure messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT, find_labs
from labstaff.authoring.mistakes import find_mistake
from labstaff.release.tree import release
from tests.labstaff.release import panel
from tests.student import quiet_environment

pytestmark = pytest.mark.slow

LABS = find_labs()
LAB = LABS[0]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A released tree in a fresh folder."""
    out = tmp_path_factory.mktemp("released") / "course"
    release(ROOT, out)
    return out


def settings(folder) -> dict:
    return json.loads((folder / ".vscode" / "settings.json").read_text(encoding="utf-8"))


def in_panel(released, folder, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Run pytest as the editor does, by default with the settings' arguments; returns what its panel received."""
    file = folder / "panel.json"
    beside = os.path.dirname(panel.__file__)
    environment = {**quiet_environment(), "PYTHONPATH": os.pathsep.join([str(released), beside])}
    wanted = arguments or (*settings(released)["python.testing.pytestArgs"], "--collect-only")
    command = [sys.executable, "-m", "pytest", "-p", "panel", f"--panel={file}", f"--rootdir={released}", *wanted]
    done = subprocess.run(command, cwd=released, env=environment, capture_output=True, text=True, timeout=300)
    return done, json.loads(file.read_text(encoding="utf-8"))


def test_the_panel_shows_labs_tasks_and_tests(released, tmp_path):
    assert settings(released)["python.testing.pytestEnabled"] is True
    done, told = in_panel(released, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "warning" not in done.stdout.lower()
    shown = {(id_.split("/")[1], task) for id_, (_, task, _) in told["tests"].items()}
    assert shown == {(lab.folder.name, task.tests) for lab in LABS for task in lab.tasks}


def test_a_lab_without_torch_is_collected_without_torch(released, tmp_path):
    """Importing torch takes longest, and the panel is refreshed on every save."""
    numpy_labs = [f"labs/{lab.folder.name}" for lab in LABS if "torch" not in lab.suite_file.read_text()]
    assert numpy_labs
    done, told = in_panel(released, tmp_path, *numpy_labs, "--collect-only")
    assert done.returncode == 0
    assert not told["imports_torch"]


def test_the_panel_says_what_a_student_would_read(released, tmp_path):
    mistake = find_mistake(LAB, "attention_without_scale")
    target = released / "labs" / LAB.folder.name / "src" / f"{LAB.module}.py"
    stub = target.read_text(encoding="utf-8")
    untouched = f"labs/{LAB.folder.name}/tests/test_{LAB.module}.py::{mistake.found_by[0]}"
    _, told = in_panel(released, tmp_path, untouched)
    assert [message.partition(" ")[2] for message in told["messages"].values()] == ["still raises NotImplementedError"]
    try:
        target.write_text(mistake.source(), encoding="utf-8")
        _, told = in_panel(released, tmp_path, untouched)
    finally:
        target.write_text(stub, encoding="utf-8")
    (message,) = told["messages"].values()
    assert mistake.says in message
    assert "Traceback" not in message
    assert len(message.splitlines()) <= 12
