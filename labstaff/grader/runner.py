"""Runs suites on submissions in sandboxes: a warm process for suites, and a warm sandbox for each run at a time."""

from __future__ import annotations

import functools
from typing import Any

from labkit.suite.forked import HEAVY, ForkedRunner
from labkit.suite.run import SuiteRun
from labstaff.grader.sandbox import BROKEN, Sandbox, require_sandbox, use


class SandboxedRunner(ForkedRunner):
    """As `ForkedRunner`, with each submission in a sandbox. Threads may share one.

    Args:
        modules: imported once, for suites and for submissions.
        unsafe: do without bubblewrap (see `Sandbox`).

    Raises:
        SandboxMissing: bubblewrap is missing or does not work here, and `unsafe` was not given.
    """

    def __init__(self, modules: tuple[str, ...] = tuple(HEAVY.values()), *, unsafe: bool = False) -> None:
        if not unsafe:
            require_sandbox()
        super().__init__(modules)
        self._modules = modules
        self._unsafe = unsafe
        self._idle: list[Sandbox] = []

    def run(self, lab: str, *options: str, **more: Any) -> SuiteRun:
        """See `ForkedRunner.run`. A sandbox in which a run did not end, or left something, is not used again."""
        sandbox = self._idle.pop() if self._idle else Sandbox(self._modules, unsafe=self._unsafe)
        run = super().run(lab, *options, "--sandboxed", prepare=functools.partial(use, sandbox.control), **more)
        if BROKEN in run.problem and (error := sandbox.last_error()):
            run.problem = f"{BROKEN}: {error}"
        if run.problem or not sandbox.is_usable():
            sandbox.close()
        else:
            self._idle.append(sandbox)
        return run

    def close(self) -> None:
        """End the sandboxes."""
        while self._idle:
            self._idle.pop().close()
