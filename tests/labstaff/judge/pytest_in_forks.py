"""Runs pytest in children forked from a process that has everything imported: `uv run pytest` without its start."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from labkit.suite.forkserver import ForkServer, serve, warm_up
from labkit.suite.verdict import Verdict, verdict_from
from labstaff.judge import sandbox

MODULES = ("numpy", "hypothesis", "matplotlib.pyplot", "labstaff.judge.proxy", "verdicts_as_data")
LONGEST_SECONDS = 600.0


class Pytest:
    """pytest's command line, many at a time, with a box ready for those that say `--sandboxed`.

    Args:
        modules: what else is imported before the first run.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        quiet = {"NO_COLOR": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "120"}
        self._server = ForkServer(
            [sys.executable, "-m", __name__, *modules], env={**os.environ, **quiet, "PYTHONPATH": str(ROOT)}
        )

    def __call__(
        self, told: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> list[Verdict]:
        """The verdicts of a run, which are written to the file `told`; none of a run that died."""
        request = {
            "environment": {**(environment or {}), "VERDICTS": str(told)},
            "arguments": ["-p", "tests.labstaff.judge.verdicts_as_data", *arguments],
        }
        child = self._server.fork(json.dumps(request).encode())
        child.wait(LONGEST_SECONDS)
        child.kill()
        if not told.exists():
            return []
        return [verdict_from(each) for each in json.loads(told.read_text(encoding="utf-8"))]

    def __enter__(self) -> Pytest:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.close()


def _live(request: bytes, _descriptors: list[int]) -> int:
    asked = json.loads(request)
    os.environ.update(asked["environment"])
    os.chdir(ROOT)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    return pytest.main(asked["arguments"])


if __name__ == "__main__":
    with sandbox.keep_boxed([]) as wait_until_ready:
        *modules, control = sys.argv[1:]
        warm_up((*MODULES, *modules))
        wait_until_ready()
        serve(socket.socket(fileno=int(control)), _live)
