"""Runs nbgrader's own commands, each in a process forked from one that has imported nbgrader once.

Importing nbgrader takes seconds, and every command does it again. nbgrader calls a program of its environment by name
(alembic): that environment comes first on the commands' PATH.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import find_labs, python_path
from labkit.suite.forkserver import ForkServer, serve, warm_up
from labstaff.grader.version import version_of


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    output: str


class Nbgrader:
    """nbgrader's commands: `nbgrader(course, "autograde", "lab01_memory_profiling")`.

    It imports nbgrader from the moment it is made, while its maker does something else.

    Args:
        environment: added to the commands' environment, which is this process's own.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        environment = {**os.environ, **(environment or {})}
        programs = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [environment.get("PATH")])])
        command = [sys.executable, "-P", "-m", __name__]
        self._server = ForkServer(
            command, env={**environment, "PATH": programs, "PYTHONPATH": python_path(environment)}
        )

    def __call__(self, course: Path, *arguments: str) -> Done:
        """Run `nbgrader ARGUMENTS` in the folder `course` and wait for it.

        Raises:
            ServerEnded: the process that runs nbgrader is gone.
        """
        reader, writer = os.pipe()
        with os.fdopen(reader, encoding="utf-8", errors="replace") as output:
            try:
                child = self._server.fork(json.dumps([str(course), *arguments]).encode(), [writer])
            finally:
                os.close(writer)
            printed = output.read()
        status = child.wait().status
        child.kill()
        return Done(os.waitstatus_to_exitcode(status), printed)

    def __enter__(self) -> Nbgrader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.close()


def main(control: str) -> None:
    """Import nbgrader, then make a child for each command until nobody can ask for more."""
    version_of(find_labs()[0], 0)  # what of it is the same for all labs is worked out once, not by each command
    warm_up(("nbgrader.apps.nbgraderapp", "jupytext", "pygments.formatters", "labstaff.course.suite_outputs"))
    serve(socket.socket(fileno=int(control)), _live)


def _live(request: bytes, descriptors: list[int]) -> int:
    from nbgrader.apps.nbgraderapp import NbGraderApp

    for stream in (1, 2):
        os.dup2(descriptors[0], stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    course, *arguments = json.loads(request)
    os.chdir(course)
    return _run(NbGraderApp, arguments)


def _run(app: type, arguments: list[str]) -> int:
    try:
        app.launch_instance(argv=arguments)  # type: ignore[attr-defined]
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
