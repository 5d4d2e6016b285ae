"""`lab` on a terminal: one line for what cannot be done, one for Ctrl-C, and nothing in git that nobody changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from labkit.labs.catalog import ROOT
from tests.student import House, quiet_environment, solution_text, with_function

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Lab 01 solved, in a clone of its own."""
    made = House(tmp_path_factory.mktemp("house"))
    made.write(solution_text())
    return made


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("check", "99"), "there is no lab '99'; there are: 01 (Memory profiling)"),
        (("check", "nowhere/at/all"), "there is no lab 'nowhere/at/all'"),
        (("check", "01", "nothing"), "lab01 has no task 'nothing'; its tasks are: standard_attention,"),
        (("hint", "01", "nothing"), "lab01 has no task 'nothing'"),
        (("watch", "77"), "there is no lab '77'"),
        (("bench", "--csv", "pyproject.toml"), "pyproject.toml holds no rows of the benchmark"),
        (("bench", "--csv", "labs"), "Is a directory"),
        (("bench", "--d-models", "4", "--seq-lens", "8", "--csv", "no/folder/x.csv"), "No such file or directory"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_one_line(house, command, says):
    run = house.command(*command)
    assert run.returncode not in (0, 2)
    told = [line for line in (run.stdout + run.stderr).splitlines() if not line.startswith("lab bench: row")]
    assert len(told) == 1, told
    assert says in told[0]


NO_ROOM = "ulimit -f 0; trap '' XFSZ; exec \"$@\""
"""A shell in which no file may grow: a full disk, as far as a program can tell."""


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--d-models", "4", "--seq-lens", "8", "--csv", "rows.csv"),
        ("trace", "traced.py:square", "--shape", "2,2", "--out", "page.html"),
        ("hint", "01"),
    ],
    ids=lambda command: command[0],
)
def test_a_disk_that_is_full(house, command):
    (house.folder / "traced.py").write_text("def square(x):\n    return x @ x\n", encoding="utf-8")
    run = subprocess.run(
        ["bash", "-c", NO_ROOM, "bash", sys.executable, "-m", "labkit.commands.cli", *command],
        cwd=house.folder,
        env={**quiet_environment(), "PYTHONPATH": str(house.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1
    told = [line for line in run.stderr.splitlines() if not line.startswith("lab bench: row")]
    assert len(told) == 1, told
    assert told[0].startswith((f"lab {command[0]}: File too large", f"lab {command[0]}: No usable temporary directory"))


INTERRUPTED_IMPORT = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "labkit.commands.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from labkit.commands.cli import main
main()
"""


def test_interrupted_before_the_command_is_known(house):
    environment = {**quiet_environment(), "PYTHONPATH": str(house.folder)}
    run = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "\nlab: interrupted\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--workers", "0"), "--workers"),
        (("--scheduler", "nowhere"), "lab grade: --scheduler nowhere: "),
        (("--results", "{file}"), "lab grade: {file}: File exists"),
        (("--results", "{file}/below"), "lab grade: {file}/below: Not a directory"),
    ],
    ids=" ".join,
)
def test_graders_that_cannot_work(tmp_path, options, says):
    file = tmp_path / "file"
    file.touch()
    there = tmp_path / "submitted" / "ann" / "lab01_memory_profiling" / "src" / "profiling.py"
    there.parent.mkdir(parents=True)
    there.write_text(solution_text(), encoding="utf-8")
    told = [option.format(file=file) for option in options]
    command = [sys.executable, "-m", "labkit.commands.cli", "grade", str(tmp_path / "submitted"), "--lab", "01", *told]
    run = subprocess.run(command, cwd=ROOT, env=quiet_environment(), capture_output=True, text=True, timeout=300)
    assert run.returncode in (1, 2)
    assert says.format(file=file) in run.stderr
    assert "Traceback" not in run.stderr
    kept = tmp_path / "judging.json"
    assert not kept.exists() or str(file.name) not in kept.read_text(encoding="utf-8"), "what failed is not remembered"


def test_hints_that_cannot_be_remembered(tmp_path):
    made = House(tmp_path)
    (tmp_path / ".lab").write_text("no folder", encoding="utf-8")
    run = made.command("hint", "01")
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("lab hint: ")


@pytest.mark.parametrize("command", ["check", "watch"])
def test_interrupted(tmp_path, command):
    made = House(tmp_path)
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
    assert f"lab {command}: interrupted in test_worked_example, at profiling.py:" in stdout
    assert "time.sleep(60), after 0 of 98 tests" in stdout
    assert "Traceback" not in stdout + stderr


def test_a_run_that_took_long_is_announced(house, monkeypatch):
    from labkit.suite.results import store

    store(house.lab, {}, suite_seconds=47.6)
    assert house.check().stderr == "lab01: the last run took 48 s\n"
    assert house.check("estimate_attention_memory").stderr == "", "a single task is over soon"


def test_plots_are_nothing_that_git_shows():
    done = subprocess.run(["git", "-C", ROOT, "check-ignore", "plots/memory_over_length.png"], capture_output=True)
    assert done.returncode == 0
