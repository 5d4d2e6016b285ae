"""Runs suites on submissions in sandboxes: a warm process for suites, and a warm sandbox for each run at a time."""

from __future__ import annotations

import dataclasses
import functools
import os
import resource
import socket
from multiprocessing import forkserver, parent_process
from typing import Any

from labkit.suite.forked import SLOW_IMPORTS, ForkedRunner
from labkit.suite.results import How, SuiteRun
from labstaff.grader.confine import MEMORY_BYTES, end_with_parent, limit
from labstaff.grader.sandbox import Sandbox, require_sandbox, use

SUITE_LIMITS = {resource.RLIMIT_DATA: MEMORY_BYTES, resource.RLIMIT_CPU: 120, resource.RLIMIT_CORE: 0}
"""For a process that runs a suite, without the submission's worker: bytes and CPU seconds.

RLIMIT_DATA counts what is allocated, and not what is only mapped, as torch's libraries are. With a right submission no
suite needs more than 1.1 GiB, 0.9 of them for torch, and 5 CPU seconds.
"""


class SandboxedRunner(ForkedRunner):
    """As `ForkedRunner`, with each submission in a sandbox. Threads may share one.

    Args:
        modules: imported once, for suites and for submissions.
        unsafe: do without bubblewrap (see `Sandbox`).

    Raises:
        SandboxMissing: bubblewrap is missing or does not work here, and `unsafe` was not given.
    """

    def __init__(self, modules: tuple[str, ...] = tuple(SLOW_IMPORTS.values()), *, unsafe: bool = False) -> None:
        if not unsafe:
            require_sandbox()
        super().__init__(modules)
        self._modules = modules
        self._unsafe = unsafe
        self._idle: list[Sandbox] = []

    def run(self, lab: str, *options: str, **more: Any) -> SuiteRun:
        """See `ForkedRunner.run`. A sandbox in which a run did not end, or left something, is not used again."""
        sandbox = self._idle.pop() if self._idle else Sandbox(self._modules, unsafe=self._unsafe)
        is_clean = False
        try:
            run = super().run(
                lab, *options, "--sandboxed", prepare=functools.partial(_prepare, sandbox.control), **more
            )
            if run.ended.how is How.STOPPED and (error := sandbox.last_error()):
                detail = f"{run.ended.detail}; the last line from inside: {error}"
                run.ended = dataclasses.replace(run.ended, detail=detail)
            is_clean = run.ended.how is How.FINISHED and sandbox.is_usable()
            return run
        finally:
            if is_clean:
                self._idle.append(sandbox)
            else:
                sandbox.close()

    def require_worker(self) -> None:
        """Start a worker in a new sandbox, without any submission.

        Raises:
            SandboxBroken: there is none: no submission is the cause.
        """
        with Sandbox(self._modules, unsafe=self._unsafe) as sandbox:
            sandbox.worker()

    def close(self) -> None:
        """End the sandboxes."""
        while self._idle:
            self._idle.pop().close()


def _prepare(control: socket.socket) -> None:
    """Bound the process of a suite, which ends with `lab grade` however that ends, and name its sandbox."""
    end_with_parent()  # the fork server, which ends with `lab grade` when no other process has its pipe
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    grader = parent_process()
    if grader is None or not grader.is_alive():
        os._exit(1)
    limit(SUITE_LIMITS)
    use(control)
