"""Runs nbgrader's own commands, each in a process forked from one that has imported nbgrader once.

Importing nbgrader takes seconds, and every command does it again. nbgrader calls a program of its environment by name
(alembic): that environment comes first on the commands' PATH.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from labkit.labs.catalog import ROOT


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
        path = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        self._parent = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PATH": programs, "PYTHONPATH": path},
        )

    def __call__(self, course: Path, *arguments: str) -> Done:
        """Run `nbgrader ARGUMENTS` in the folder `course` and wait for it."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([str(course), *arguments]) + "\n")
        self._parent.stdin.flush()
        answer = self._parent.stdout.readline()
        if not answer:
            raise RuntimeError("the process that runs nbgrader has ended")
        return Done(**json.loads(answer))

    def __enter__(self) -> Nbgrader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parent.stdin is not None:
            self._parent.stdin.close()
        self._parent.wait(timeout=30)


def serve() -> None:
    """Answer a command a line until the input ends."""
    from nbgrader.apps.nbgraderapp import NbGraderApp

    for module in ("jupytext", "pygments.formatters", "labstaff.course.suite_outputs"):
        importlib.import_module(module)  # each command would import them again
    for line in sys.stdin:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            for descriptor in (1, 2):
                os.dup2(writer, descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            course, *arguments = json.loads(line)
            os.chdir(course)
            os._exit(_run(NbGraderApp, arguments))
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
            output = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"status": status, "output": output}), flush=True)


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
    serve()
