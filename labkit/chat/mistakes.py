"""Reports a mistake in the student's code as `lab check` does, and ends the command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from labkit.labs.manifest import Lab
from labkit.suite.messages import explain
from labkit.suite.results import State


@contextlib.contextmanager
def explained(lab: Lab) -> Iterator[None]:
    """Context in which the student's code runs: any exception of it becomes a few lines, and exit status 1."""
    try:
        yield
    except (KeyboardInterrupt, typer.Exit):
        raise
    except BaseException as error:
        typer.echo()
        for line in mistake_lines(lab, error):
            typer.echo(line, err=True)
        raise typer.Exit(1) from None


def mistake_lines(lab: Lab, error: BaseException) -> list[str]:
    """What went wrong, and what to do next."""
    state, lines = explain(error, [lab.student_file])
    if state is State.NOT_STARTED:
        name = _function(lab, error)
        where = lines[0].partition(" ")[0]
        return [f"{lab.label} · {name} · not implemented yet: write it first ({where}); a hint: lab hint {lab.number}"]
    told = [line.replace("the test did:", "the model did:") for line in lines]
    return [
        f"{lab.label} · {told[0]}",
        *(f"  {line}" for line in told[1:]),
        f"uv run lab check {lab.number} tells more",
    ]


def _function(lab: Lab, error: BaseException) -> str:
    """The student's function, or method with its class, that raised `error`."""
    found, entry = "", error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename == str(lab.student_file):
            found = code.co_qualname
        entry = entry.tb_next
    return found
