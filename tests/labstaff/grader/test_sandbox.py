"""Where there is no sandbox, nothing is graded; and what is inside one."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.suite.forked import CONTEXT, ForkedRunner
from labkit.suite.results import How
from labstaff.grader import preload, runner, sandbox
from labstaff.grader.confine import MEMORY_BYTES
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
    monkeypatch.setattr(sandbox, "MOUNTED", [name for name in sandbox.MOUNTED if "wire" not in name])
    with SandboxedRunner(()) as runs:
        ended = runs.run(LAB.label, "--solutions", tests=("TestStandardAttention::test_worked_example",)).ended
    assert ended.how is How.STOPPED
    assert ended.detail.startswith("the sandbox is broken: it gives no worker: "), ended
    assert "; the last line from inside: ImportError: cannot import name 'wire'" in ended.detail


def test_a_worker_that_does_not_end_breaks_the_sandbox(monkeypatch):
    """A TimeoutError would be a message for the student."""
    process = subprocess.Popen([sys.executable, "-P", "-c", "input()"], stdin=subprocess.PIPE)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(sandbox, "END_SECONDS", 0.01)
    with process, ours, theirs, socket.socket() as channel:
        worker = sandbox.Worker(sandbox.Workers(ours), channel, process.pid)
        with pytest.raises(sandbox.SandboxBroken, match=r"not gone after 0\.01 s"):
            worker.end()
        assert worker.end() is None


def test_only_a_sandbox_that_goes_on_is_usable():
    """It answers itself: its process may be about to end when a run is over."""
    with sandbox.Sandbox(unsafe=True) as kept:
        assert kept.is_usable()
        kept.worker().end()
        assert kept.is_usable()
        kept._process.send_signal(signal.SIGKILL)
        assert not kept.is_usable()


def test_a_run_that_raises_closes_its_sandbox(monkeypatch):
    closed, close = [], sandbox.Sandbox.close
    monkeypatch.setattr(sandbox.Sandbox, "close", lambda self: closed.append(self) or close(self))
    monkeypatch.setattr(ForkedRunner, "run", lambda *_, **__: 1 / 0)
    with SandboxedRunner(()) as runs:
        with pytest.raises(ZeroDivisionError):
            runs.run(LAB.label)
        assert closed
        assert not runs._idle


def bounded(control: socket.socket) -> None:
    """In a process for suites: allocate all that it may have and more."""
    runner._prepare(control)
    assert resource.getrlimit(resource.RLIMIT_CPU)[1] == runner.SUITE_LIMITS[resource.RLIMIT_CPU]
    try:
        bytearray(MEMORY_BYTES)
    except MemoryError:
        os._exit(3)


def test_the_process_of_a_suite_is_bounded():
    """What a suite makes of a submission's result has to fit."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = CONTEXT.Process(target=bounded, args=(theirs,))
        process.start()
        process.join()
    assert process.exitcode == 3


def test_the_sandbox_holds_no_answers():
    inside = {Path(name).name for name in sandbox.MOUNTED}
    assert not inside & {"reference.py", "cases.py", "compare.py", "bench", "solutions", "tests"}


@pytest.mark.parametrize(
    ("file", "content", "advice"),
    [
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "apparmor_restrict_unprivileged_userns=0"),
        ("proc/sys/kernel/unprivileged_userns_clone", "0\n", "unprivileged_userns_clone=1"),
        ("proc/sys/user/max_user_namespaces", "0\n", "max_user_namespaces=15000"),
        (".dockerenv", "", "docker run --cap-add SYS_ADMIN"),
        ("proc/sys/kernel/unprivileged_userns_clone", "1\n", "something on this machine"),
    ],
)
def test_what_forbids_namespaces_is_named_with_what_allows_them(tmp_path, file, content, advice):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    assert advice in sandbox.why_no_namespaces(tmp_path)


def test_what_libraries_wrote_is_removed(tmp_path):
    """From a folder in which nothing can be created any more; what a link leads to stays."""
    kept = tmp_path / "kept"
    kept.mkdir()
    scratch = tmp_path / "scratch"
    (scratch / "folder").mkdir(parents=True)
    (scratch / "folder" / "file").write_text("x")
    (scratch / "link").symlink_to(kept)
    scratch.chmod(0o555)
    assert preload._emptied(str(scratch))
    assert kept.is_dir()
