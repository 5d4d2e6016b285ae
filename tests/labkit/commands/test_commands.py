"""`lab` on a terminal: one line for each error, and one for Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from labkit.labs.catalog import ROOT
from tests.student import StudentTree, quiet_environment, solution_text, with_function

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Lab 01 solved, in a students' tree."""
    return StudentTree(tmp_path_factory.mktemp("tree"), solution_text())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("check", "99"), "there is no lab '99'; there are: 01 (Memory profiling)"),
        (("hint", "01", "nothing"), "lab01 has no task 'nothing'; its tasks are: standard_attention,"),
        (("bench", "--csv", "pyproject.toml"), "pyproject.toml holds no rows of the benchmark"),
        (("bench", "--csv", "labs"), "Is a directory"),
        (("bench", "--d-models", "4", "--seq-lens", "8", "--csv", "no/folder/x.csv"), "No such file or directory"),
    ],
    ids=" ".join,
)
def test_an_error_of_the_user_is_one_line(tree, command, message):
    run = tree.command(*command)
    assert run.returncode not in (0, 2)
    lines = [line for line in (run.stdout + run.stderr).splitlines() if not line.startswith("lab bench: row")]
    assert len(lines) == 1, lines
    assert message in lines[0]


NO_ROOM = "ulimit -f 0; trap '' XFSZ; exec \"$@\""
"""A shell in which no file may grow: a full disk, as far as a program can tell."""


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--d-models", "4", "--seq-lens", "8", "--csv", "rows.csv"),
        ("hint", "01"),
    ],
    ids=lambda command: command[0],
)
def test_a_full_disk_is_one_line(tree, command):
    run = subprocess.run(
        ["bash", "-c", NO_ROOM, "bash", sys.executable, "-m", "labkit.commands.cli", *command],
        cwd=tree.folder,
        env={**quiet_environment(), "PYTHONPATH": str(tree.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1
    lines = [line for line in run.stderr.splitlines() if not line.startswith("lab bench: row")]
    assert len(lines) == 1, lines
    assert lines[0].startswith(
        (f"lab {command[0]}: File too large", f"lab {command[0]}: No usable temporary directory")
    )


INTERRUPTED_TWICE = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGINT)
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "labkit.commands.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from labkit.commands.cli import main
main()
"""


def test_ctrl_c_before_the_command_is_known_and_while_python_ends(tree):
    environment = {**quiet_environment(), "PYTHONPATH": str(tree.folder)}
    run = subprocess.run([sys.executable, "-c", INTERRUPTED_TWICE], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "\nlab: interrupted\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "0"), "--workers"),
        (("--csv", "{file}/a"), "lab grade: {file}/a cannot be written: there is no folder {file}"),
    ],
    ids=" ".join,
)
def test_grading_options_that_cannot_work(tmp_path, options, message):
    file = tmp_path / "file"
    file.touch()
    submission = tmp_path / "submitted" / "ann" / "lab01_memory_profiling" / "src" / "profiling.py"
    submission.parent.mkdir(parents=True)
    submission.write_text(solution_text(), encoding="utf-8")
    given = [option.format(file=file) for option in options]
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(tmp_path / "submitted"), "--lab", "01", *given]
    run = subprocess.run(command, cwd=ROOT, env=quiet_environment(), capture_output=True, text=True, timeout=300)
    assert run.returncode in (1, 2)
    assert message.format(file=file) in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("command", ["check", "watch"])
def test_ctrl_c_names_test_line_and_count(tmp_path, command):
    made = StudentTree(tmp_path)
    begun = tmp_path / "begun"
    waits = "def standard_attention(*arguments):\n    import pathlib, time\n"
    waits += f"    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(60)"
    made.write(with_function(solution_text(), "standard_attention", waits))
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit.commands.cli", command, "01"],
        cwd=made.folder,
        env={**quiet_environment(), "PYTHONPATH": str(made.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            if begun.exists():
                break
            time.sleep(0.1)
        assert begun.exists()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the command gets Ctrl-C
        stdout, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130
    assert f"lab {command}: interrupted in test_results[N63-full], at profiling.py:" in stdout
    assert "time.sleep(60), after 0 of" in stdout
    assert "Traceback" not in stdout + stderr


def test_a_run_that_took_long_is_announced(tree):
    from labkit.suite.results import store

    store(tree.lab, {}, suite_seconds=47.6)
    assert tree.check("--first").stderr.startswith("lab01: the last run took 48 s\n")
    assert "took" not in tree.check("estimate_attention_memory").stderr, "a single task is over soon"
