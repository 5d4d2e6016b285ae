"""A suite that is collected once: a process that holds it, and forks a run of its tests for each answer.

Setting up pytest and collecting a suite take longer than many an answer's tests. Nothing of an answer is there while
that is done: the stand-ins for its functions begin to stand for something in the fork, where its file is named.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import signal
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.abc import Loader
from pathlib import Path

import pytest

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab
from labkit.suite.finder import Answer
from labkit.suite.forkserver import serve
from labkit.suite.plugin import ANSWERS
from labkit.suite.prefork import Teller
from labkit.suite.run import Recorder, run_suite
from labstaff.judge.client import RemoteAnswer, programs_of
from labstaff.judge.proxy import client_loader
from labstaff.judge.sandbox import Sandbox

LIFE = "labstaff.judge.collected:collect"
PR_SET_PDEATHSIG = 1


def collect(control: socket.socket, lab: str) -> None:
    """The life of such a process: collect the suite of `lab`, then fork a run for each request on `control`.

    A request names the answer's `file`, the `seed` of the random inputs, and `cpu_seconds`, as in `run_suite`.
    """
    with tempfile.TemporaryDirectory(prefix="no-answer-") as nowhere:
        # captured in memory: of forks that write to one file, each would read what the others print
        options = ("--src", nowhere, "--capture=sys")
        run_suite(find_lab(lab), *options, plugins=[_Collected(find_lab(lab), control)])


class _Collected:
    """A pytest plugin that serves forks in place of running the tests; in a fork, it lets them run."""

    def __init__(self, lab: Lab, control: socket.socket) -> None:
        self.lab, self.control = lab, control
        self.answers: dict[Path, RemoteAnswer] = {}
        self.is_fork = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_lab_loader(self, config: pytest.Config) -> Callable[[Answer], Loader]:
        assert Sandbox.current is not None, "the process that forks keeps a box"
        return client_loader(config, Sandbox.current, self.answers, at_once=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self.is_fork:
            return None
        programs_of(self.lab.suite_file)
        gc.collect()
        gc.freeze()
        serve(self.control, partial(self.live, session))
        return True

    def live(self, session: pytest.Session, request: bytes, descriptors: list[int]) -> None:
        """A fork's life: one answer's run."""
        _end_with_the_parent()
        self.is_fork = True
        job, teller = json.loads(request), Teller(socket.socket(fileno=descriptors[0]))
        config, answer = session.config, Answer(self.lab, Path(job["file"]))
        config.option.seed = job["seed"]
        config.stash[ANSWERS][self.lab.label] = answer
        recorder = next(each for each in config.pluginmanager.get_plugins() if isinstance(each, Recorder))
        recorder.begin(teller.on_verdict, job["cpu_seconds"])
        try:
            self.answers[self.lab.suite_file].begin(answer)
            config.hook.pytest_runtestloop(session=session)
        except session.Interrupted as stopped:
            recorder.run.problem = recorder.overtime or str(stopped)
        except pytest.exit.Exception as stopped:  # type: ignore[attr-defined]
            recorder.run.problem = str(stopped.msg)
        teller.on_end(recorder.run)


def _end_with_the_parent() -> None:
    """Have the kernel end this process when the one that forked it ends, however that comes."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
