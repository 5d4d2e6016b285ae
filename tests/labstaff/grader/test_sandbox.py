"""Where there is no sandbox, nothing is graded; and what is inside one."""

from __future__ import annotations

from pathlib import Path

import pytest

from labstaff.grader import sandbox
from labstaff.grader.runner import SandboxedRunner
from tests.student import LAB

pytestmark = pytest.mark.slow


def test_no_bubblewrap_no_grading(monkeypatch):
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: None)
    with pytest.raises(sandbox.SandboxMissing, match=r"bubblewrap .* not installed[\s\S]*--unsafe-no-sandbox"):
        sandbox.Sandbox()


def test_a_bubblewrap_that_does_not_work_is_found_before_any_submission(tmp_path, monkeypatch):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n", encoding="utf-8")
    bwrap.chmod(0o755)
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: str(bwrap))
    sandbox.require_sandbox.cache_clear()
    with pytest.raises(sandbox.SandboxMissing, match=r"No permissions[\s\S]*--unsafe-no-sandbox"):
        SandboxedRunner()


def test_a_run_says_why_its_sandbox_gives_no_worker(monkeypatch):
    monkeypatch.setattr(sandbox, "INSIDE", [name for name in sandbox.INSIDE if "wire" not in name])
    with SandboxedRunner(()) as runner:
        problem = runner.run(LAB.label, "--solutions", tests=("TestStandardAttention::test_worked_example",)).problem
    assert problem.startswith(f"{sandbox.BROKEN}: ImportError: cannot import name 'wire'"), problem


def test_the_sandbox_holds_no_answers():
    inside = {Path(name).name for name in sandbox.INSIDE}
    assert not inside & {"reference.py", "tensor_reference.py", "compare.py", "bench", "solutions", "tests"}
