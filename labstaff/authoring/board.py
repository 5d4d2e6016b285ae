"""Counts of Lab 13's reference servers: `python -m labstaff.authoring.board` writes the lab's board.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from labkit.labs.catalog import find_lab, solution_file, solution_folder
from labkit.labs.manifest import Lab

REFERENCES = {
    "first come, first served": "servers/first_come",
    "with a prefix cache": "alternatives/reserving",
    "and with preemption": "",
}
"""The rows, from the top: a file next to the solution that holds what differs from it; nothing for the solution."""

SEED = 0
"""The suite's own, unless it is given another."""


def counted_board(lab: Lab) -> dict[str, Any]:
    """The traces in words, and the engine's counts for each server on each trace.

    Raises:
        AssertionError: a reference server breaks what is asked of any server; the message says how.
    """
    from labkit.serving.requests import KINDS, LIMITS, describe, make_trace

    traces = {kind: make_trace(kind, SEED) for kind in LIMITS}
    references = []
    for name, other in REFERENCES.items():
        make = server_module(lab, other).Server
        counts = {kind: _served(make, kind, trace).counts for kind, trace in traces.items()}
        references.append({"name": name, "counts": counts})
    words = {kind: describe(trace, answers=kind in KINDS) for kind, trace in traces.items()}
    return {"traces": words, "references": references}


def _served(make: Callable[..., Any], kind: str, trace: Sequence[Any]) -> Any:
    """The result of a trace: an invented one with a model, the real one without."""
    from labkit.serving.drive import serve_plans
    from labkit.serving.engine import serve, settings_of, token_bytes
    from labkit.serving.model import SPEC
    from labkit.serving.requests import LIMITS, REAL

    nbytes, max_tokens = LIMITS[kind]["nbytes"], LIMITS[kind]["max_tokens"]
    server = make(SPEC, nbytes, max_tokens)
    if kind != REAL:
        return serve(server, trace, SPEC, nbytes, max_tokens)
    bits, block_size, num_blocks = settings_of(server, SPEC, nbytes)
    return serve_plans(server, trace, num_blocks, block_size, max_tokens, token_bytes=token_bytes(SPEC, bits))


def server_module(lab: Lab, other: str) -> ModuleType:
    """The solution, with the definitions of the file `other` instead of its own."""
    module = ModuleType(lab.module)
    for file in (solution_file(lab), *([solution_folder(lab) / f"{other}.py"] if other else [])):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def board_text(lab: Lab) -> str:
    """The text of board.json."""
    return json.dumps(counted_board(lab), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (find_lab("13").folder / "board.json").write_text(board_text(find_lab("13")), encoding="utf-8")
