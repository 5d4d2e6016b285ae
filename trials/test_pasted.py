"""Nothing that a student carries earns points by being pasted: each function of labkit, tried in every task's place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pasting import CONTROL, LAB, RESULT, answer_of

from labkit.labs.catalog import ROOT, find_labs

LABS = [lab for lab in find_labs() if not lab.draft]


@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_no_function_of_labkit_is_an_answer(lab, tmp_path):
    (tmp_path / f"{lab.module}.py").write_text(answer_of(lab), encoding="utf-8")
    told = tmp_path / "passed"
    told.touch()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"labs/{lab.folder.name}", "--src", str(tmp_path), "-p", "pasting", "-q"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            LAB: lab.label,
            RESULT: str(told),
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = told.read_text(encoding="utf-8").splitlines()
    control = [test for test in passed if CONTROL in test]
    assert len({test.split("::")[1] for test in control}) > len(lab.tasks) // 2, "nothing passes: is anything tried?"
    others = sorted(set(passed) - set(control))
    assert not others, "these tests pass with what labkit holds:\n" + "\n".join(others)
