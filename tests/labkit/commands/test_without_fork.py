"""What students run on Windows' own Python, as far as Linux can show it: without fork, alarms and `resource`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit.labs.catalog import ROOT
from tests.student import StudentTree, solution_text

pytestmark = pytest.mark.slow
WRONG = solution_text().replace(" * Q.dtype.type(Q.shape[-1] ** -0.5)", "")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Lab 01 with one mistake, in a students' tree."""
    return StudentTree(tmp_path_factory.mktemp("tree"), WRONG)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("lab", "check", "01"), "lab01: 5 of 6 tasks done, 40 of 60 points"),
        (("lab", "check", "01", "-s"), "lab01: 5 of 6 tasks done, 40 of 60 points"),
        (("lab", "hint", "01"), "lab01 · standard_attention · hint 1 of "),
        (("lab",), "Attention Labs: from N×N bytes to FlashAttention"),
        (("pytest", "-q", "labs/lab01_memory_profiling"), "lab01: 5 of 6 tasks done, 40 of 60 points"),
    ],
    ids=" ".join,
)
def test_runs_without_fork(tree, command, shown):
    environment = {**tree.environment, "PYTHONPATH": os.pathsep.join([str(tree.folder), str(ROOT)])}
    run = subprocess.run(
        [sys.executable, "-m", "tests.without_fork", *command],
        cwd=tree.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert shown in run.stdout, run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
