"""The `lab` command: for students, for readers of the chapters, and for instructors if labstaff is installed."""

from __future__ import annotations

import errno
import shutil
import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from labkit.bench.commands import bench
from labkit.bench.model_command import model
from labkit.chat.card_command import card
from labkit.chat.command import chat
from labkit.commands.group import READERS, STUDENTS, LabGroup
from labkit.commands.kernel import kernel
from labkit.endpoint.command import serve
from labkit.labs.catalog import find_lab, find_labs, find_task
from labkit.ranks.command import ring
from labkit.trace.command import trace
from labkit.training.command import train

app = typer.Typer(
    cls=LabGroup,
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Attention Labs: measure attention's memory, then write FlashAttention. Without a command: the board, which "
    "shows every lab, your points, and what to do next.",
)
FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
NO_TEMPORARY_FOLDER = errno.ENOENT  # as `tempfile` raises it, without a file's name
LabName = Annotated[str, typer.Argument(metavar="LAB", help="a lab's number, like 01")]
TaskNames = Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="run the tests of these tasks only")]
FirstFailure = Annotated[bool, typer.Option("--first", "-x", help="stop at the first failure")]


def file_error(error: OSError) -> str | None:
    """The message of a file or disk error; None for any other error."""
    if isinstance(error, shutil.Error) and error.args:
        return str(error.args[0][0][-1] if isinstance(error.args[0], list) else error.args[0])
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror if error.errno in (*FULL_OR_READ_ONLY, NO_TEMPORARY_FOLDER) else None


@app.callback(invoke_without_command=True)
def board(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="show the course's version")] = False,
) -> None:
    """Show the board."""
    if show_version:
        typer.echo(f"Attention Labs {version('attention-labs')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        from labkit.commands.board import show_board

        show_board(find_labs())


@app.command(rich_help_panel=STUDENTS)
def check(
    lab: LabName,
    tasks: TaskNames = None,
    everything: Annotated[bool, typer.Option("--all", "-v", help="show every failure in full")] = False,
    show_prints: Annotated[
        bool, typer.Option("--prints", "-s", help="show what your code prints; breakpoint() works")
    ] = False,
    first_failure: FirstFailure = False,
) -> None:
    """Run a lab's tests on your file, and show for each task what is wrong or missing."""
    from labkit.commands.check import check_lab

    found = find_lab(lab)
    chosen = [find_task(found, name) for name in tasks or []]
    status = check_lab(found, chosen, everything=everything, show_prints=show_prints, first_failure=first_failure)
    raise typer.Exit(status)


@app.command(rich_help_panel=STUDENTS)
def hint(
    lab: LabName,
    task: Annotated[str | None, typer.Argument(help="a task; without it, the next one that is not done")] = None,
    again: Annotated[bool, typer.Option("--again", help="show the hints so far, and no new one")] = False,
) -> None:
    """Show the next hint of a task, one at a time."""
    from labkit.commands.hints import hint_lines

    for line in hint_lines(find_lab(lab), task, again=again):
        typer.echo(line)


@app.command(rich_help_panel=STUDENTS)
def watch(
    lab: Annotated[
        str | None, typer.Argument(metavar="[LAB]", help="a lab's number; without it the next lab, task by task")
    ] = None,
    tasks: TaskNames = None,
    first_failure: FirstFailure = False,
) -> None:
    """Run a lab's tests again whenever its file is saved, and show what changed. Ctrl-C ends it."""
    from labkit.commands.watch import follow_lab, watch_lab
    from labkit.suite.results import load, next_task

    if lab is None:
        following = next((each for each in find_labs() if next_task(each, load(each))), None)
        if following is None:
            sys.exit("lab watch: every task is done")
        follow_lab(following, first_failure=first_failure)
        from labkit.chat.whole import spoken

        typer.echo(spoken())
        return
    found = find_lab(lab)
    watch_lab(found, [find_task(found, name) for name in tasks or []], first_failure=first_failure)


@app.command(rich_help_panel=STUDENTS)
def review(
    lab: LabName,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK]...", help="the tests of these tasks only")
    ] = None,
    read: Annotated[bool, typer.Option("--read", help="print a wrong version that your tests accept")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-v", help="show every mistake that your tests find, with its diff")
    ] = False,
) -> None:
    """Run your own tests, review.py, on your file, on right versions and on wrong ones: which mistakes do they find?"""
    from labkit.commands.review import review_lab

    found = find_lab(lab)
    raise typer.Exit(
        review_lab(found, [find_task(found, name) for name in tasks or []], read=read, everything=everything)
    )


@app.command(rich_help_panel=STUDENTS)
def submit(lab: LabName) -> None:
    """Pack the files of a lab that count into one archive to hand in, and list what is not done yet."""
    from labkit.commands.submit import CannotSubmit, submit_lab

    try:
        lines = submit_lab(find_lab(lab))
    except CannotSubmit as error:
        sys.exit(f"lab submit: {error}")
    for line in lines:
        typer.echo(line)


app.command(rich_help_panel=STUDENTS)(chat)
app.command(rich_help_panel=STUDENTS)(card)
app.command(rich_help_panel=STUDENTS)(train)
app.command(rich_help_panel=STUDENTS)(serve)
app.command(rich_help_panel=STUDENTS)(kernel)
app.command(rich_help_panel=STUDENTS)(ring)
for _command in (bench, model, trace):
    app.command(rich_help_panel=READERS)(_command)
for _entry in entry_points(group="lab.commands"):  # labstaff's, which is not in the students' release
    _entry.load()(app)
