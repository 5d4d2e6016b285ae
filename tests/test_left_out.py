"""Tests that cannot run on a machine are left out and counted in one line, and nothing fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.labs.catalog import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-n1"]], ids=["one process", "xdist"])
def test_without_namespaces_sandbox_tests_are_counted(tmp_path, options):
    """The system's bwrap is used first; here it is one that may do nothing."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n", encoding="utf-8")
    bwrap.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    file = ROOT / "tests" / "labstaff" / "grading" / "test_grade_command.py"
    command = [sys.executable, "-m", "pytest", str(file), "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    line = r"^sandbox: \d+ tests were not run: .*bwrap: No permissions to create new namespace$"
    assert re.search(line, done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert not re.search(r"\d (failed|passed|errors?)", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("argument", "markers", "words", "left_out"),
    [
        ("tests", "", "", True),
        ("tests/labkit/suite", "", "", True),
        ("tests", "not gpu", "", False),
        ("tests", "", "lab05", False),
        ("tests/test_left_out.py", "", "", False),
        ("tests/test_left_out.py::test_without_namespaces_sandbox_tests_are_counted", "", "", False),
    ],
)
def test_slow_tests_run_where_a_file_or_words_name_them(request, argument, markers, words, left_out):
    """Else a file of slow tests ends with "no tests ran"."""
    conftest = request.config.pluginmanager.getplugin(str(Path(__file__).with_name("conftest.py")))
    option = SimpleNamespace(markexpr=markers, keyword=words)
    config = SimpleNamespace(option=option, args=[argument], invocation_params=SimpleNamespace(dir=ROOT))
    assert bool(conftest.REASONS["slow"](config)) == left_out
