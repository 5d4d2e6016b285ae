"""Reports a mistake in the student's code as `lab check` does, and ends the command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import typer

from labkit.labs.manifest import Lab
from labkit.suite.messages import explain, failure_lines
from labkit.suite.results import State


@contextlib.contextmanager
def explained(*labs: Lab) -> Iterator[None]:
    """Context in which the code of students runs: any exception becomes a few lines, and exit status 1.

    Args:
        labs: whose code it is; without any, exceptions pass.
    """
    try:
        yield
    except (KeyboardInterrupt, typer.Exit):
        raise
    except BaseException as error:
        if not labs:
            raise
        typer.echo()
        for line in mistake_lines(_whose(labs, error), error):
            typer.echo(line, err=True)
        raise typer.Exit(1) from None


def mistake_lines(lab: Lab, error: BaseException) -> list[str]:
    """What went wrong, and what to do next."""
    state, failure = explain(error, [lab.student_file])
    if state is State.NOT_STARTED:
        name = _functions(lab, error)[-1]
        return [
            f"{lab.label} · {name} · not implemented yet: write it first ({failure.place})",
            f"uv run lab hint {lab.number}",
        ]
    first, *more = failure_lines(state, failure, caller="the model")
    return [
        f"{lab.label} · {first}",
        *(f"  {line}" for line in more),
        f"uv run lab check {lab.number} tells more",
    ]


def _whose(labs: Sequence[Lab], error: BaseException) -> Lab:
    """The lab whose file raised `error`; the first if none did."""
    return next((lab for lab in reversed(labs) if _functions(lab, error)), labs[0])


def _functions(lab: Lab, error: BaseException) -> list[str]:
    """The student's functions, methods with their class, that `error` passed through, the innermost last."""
    found, entry = [], error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code.co_filename == str(lab.student_file):
            found.append(code.co_qualname)
        entry = entry.tb_next
    return found
