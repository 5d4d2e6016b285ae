"""What the course's own servers count on Lab 13's board: `python -m labstaff.answers.board` writes its file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from types import ModuleType

import msgspec

from labkit.labs.catalog import find_lab, solution_file, solution_folder
from labkit.labs.manifest import Lab
from labkit.suite.counts import BOARD_FILE, COLUMNS, Board, Reference

REFERENCES = {
    "first come, first served": "servers/first_come",
    "with a prefix cache": "right/reserving",
    "and with preemption": "",
}
"""The rows, from the top: a file beside the solution that holds what differs from it; nothing for the solution."""

SEED = 0
"""The suite's own, unless it is told another."""


def counted_board(lab: Lab) -> Board:
    """The board as the engine counts it now.

    Raises:
        AssertionError: one of the course's own servers breaks what is asked of any; the message says how.
    """
    from labkit.serving.engine import serve
    from labkit.serving.model import SPEC
    from labkit.serving.trace import LIMITS, describe, make_trace

    traces = {kind: make_trace(kind, SEED) for kind in LIMITS}
    references = []
    for name, other in REFERENCES.items():
        make, counts = server_module(lab, other).Server, {}
        for kind, trace in traces.items():
            nbytes, max_tokens = LIMITS[kind]["nbytes"], LIMITS[kind]["max_tokens"]
            counts[kind] = serve(make(SPEC, nbytes, max_tokens), trace, SPEC, nbytes, max_tokens).counts
        references.append(Reference(name, counts))
    return Board({kind: describe(trace) for kind, trace in traces.items()}, references)


def board_text(board: Board) -> str:
    """What the file holds."""
    return msgspec.json.format(msgspec.json.encode(board), indent=1).decode() + "\n"


def markdown(board: Board) -> str:
    """The board's tables as the chapter has them: a trace in words, then a row for each server."""
    return "\n\n".join("\n".join(_table(board, trace)) for trace in board.traces)


def server_module(lab: Lab, other: str) -> ModuleType:
    """The solution, with what `other` defines in place of its own."""
    module = ModuleType(lab.module)
    for file in (solution_file(lab), *([solution_folder(lab) / f"{other}.py"] if other else [])):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def main(arguments: list[str] | None = None) -> int:
    """Write the board's file, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m labstaff.answers.board", description="Count Lab 13's board.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is out of date")
    only_check = parser.parse_args(arguments).check
    lab = find_lab("13")
    path, board = lab.folder / BOARD_FILE, counted_board(lab)
    if only_check:
        is_fresh = path.exists() and path.read_text(encoding="utf-8") == board_text(board)
        print(
            f"{path.name}: up to date" if is_fresh else f"{path.name} is out of date: python -m labstaff.answers.board"
        )
        return 0 if is_fresh else 1
    path.write_text(board_text(board), encoding="utf-8")
    print(f"wrote {path.name}; in chapter 13 it reads\n\n{markdown(board)}")
    return 0


def _table(board: Board, trace: str) -> Iterator[str]:
    yield f"*{trace}*: {board.traces[trace]}.\n"
    yield "| server | " + " | ".join(column.title.replace("\n", " ") for column in COLUMNS) + " |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for each in board.references:
        values = [column.of(each.counts[trace]) for column in COLUMNS]
        cells = ["–" if value is None else f"{round(value):,}" for value in values]
        yield f"| {each.name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
