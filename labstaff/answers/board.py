"""What the course's own servers count on Lab 13's board: `python -m labstaff.answers.board` writes its file."""

from __future__ import annotations

import argparse
import sys

import msgspec

from labkit.labs.catalog import find_lab, solution_folder
from labkit.labs.manifest import Lab
from labkit.suite.apart import run_apart
from labkit.suite.counts import BOARD_FILE, Board, Reference, trace_of

REFERENCES = {
    "first come, first served": "servers/first_come",
    "with a prefix cache": "right/reserving",
    "and with preemption": "",
}
"""The rows, from the top: a file beside the solution that holds what differs from it; nothing for the solution."""


class CannotCount(RuntimeError):
    """One of the course's own servers breaks what the suite asks; the message says which, and how."""


def counted_board(lab: Lab) -> Board:
    """The board as the suite counts it now.

    Raises:
        CannotCount: a server does not serve a trace.
    """
    from labkit.serving.trace import LIMITS, describe, make_trace

    traces = {kind: describe(make_trace(kind, 0)) for kind in LIMITS}
    return Board(traces, [_counted(lab, name, other) for name, other in REFERENCES.items()])


def board_text(board: Board) -> str:
    """What the file holds."""
    return msgspec.json.format(msgspec.json.encode(board), indent=1).decode() + "\n"


def _counted(lab: Lab, name: str, other: str) -> Reference:
    which = ("--answer", str(solution_folder(lab) / f"{other}.py")) if other else ("--solutions",)
    run = run_apart(lab, *which, "-m", "board")
    failed = [line for verdict in run.verdicts if not verdict.passed for line in verdict.lines]
    if run.problem or failed or not run.verdicts:
        raise CannotCount(f"{lab.label}, {name}: {run.problem or ' / '.join(failed) or 'no test counts for a board'}")
    return Reference(name, {trace_of(verdict.test): verdict.counts for verdict in run.verdicts})


def main(arguments: list[str] | None = None) -> int:
    """Write the board's file, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m labstaff.answers.board", description="Count Lab 13's board.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is out of date")
    only_check = parser.parse_args(arguments).check
    lab = find_lab("13")
    path = lab.folder / BOARD_FILE
    text = board_text(counted_board(lab))
    if only_check:
        is_fresh = path.exists() and path.read_text(encoding="utf-8") == text
        print(
            f"{path.name}: up to date" if is_fresh else f"{path.name} is out of date: python -m labstaff.answers.board"
        )
        return 0 if is_fresh else 1
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
