"""The `lab` command: the board, and what a student, a reader or an instructor asks for by name."""

from __future__ import annotations

import contextlib
import errno
import importlib
import shutil
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from labkit.bench.commands import add_commands as add_bench_commands
from labkit.commands.kernel import kernel_app
from labkit.labs.catalog import ROOT, UnknownLab, find_lab, find_labs, find_task
from labkit.labs.manifest import Lab, ManifestError
from labkit.ranks.command import ring
from labkit.trace.command import trace

app = typer.Typer(
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Attention Labs: measure attention's memory, then write FlashAttention.",
)
INTERRUPTED = 130
FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
LabName = Annotated[str, typer.Argument(metavar="LAB", help="a lab's number, like 01")]


def main() -> None:
    """Entry point: errors a user can mend are one line, not a traceback."""
    try:
        app()
    except (ManifestError, UnknownLab) as error:
        sys.exit(f"lab: {error.args[0]}")
    except OSError as error:
        if (said := of_the_disk(error)) is None:
            raise
        sys.exit(f"lab{''.join(f' {word}' for word in sys.argv[1:2])}: {said}")


def of_the_disk(error: OSError) -> str | None:
    """What a file or a disk has against it, in words; None for an error of another sort."""
    if isinstance(error, shutil.Error) and error.args:
        return str(error.args[0][0][-1] if isinstance(error.args[0], list) else error.args[0])
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror if error.errno in FULL_OR_READ_ONLY else None


@contextlib.contextmanager
def interruptible(command: str) -> Iterator[None]:
    """End with one line and the usual status when Ctrl-C is pressed."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nlab {command}: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


@app.callback(invoke_without_command=True)
def board(context: typer.Context) -> None:
    """Show the board: every lab, tasks done, points, what is next."""
    if context.invoked_subcommand is None:
        from labkit.commands.board import show_board
        from labkit.commands.setup import setup_line

        show_board(find_labs())
        if line := setup_line(ROOT):
            typer.echo(f"\n{line}")


@app.command()
def check(
    lab: LabName,
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="judge these tasks only")] = None,
    everything: Annotated[bool, typer.Option("--all", "-v", help="tell every failure in full")] = False,
    show_prints: Annotated[
        bool, typer.Option("--prints", "-s", help="show what your code prints; breakpoint() works")
    ] = False,
) -> None:
    """Run a lab's suite on your file and say what each task lacks."""
    from labkit.commands.check import check_lab

    found = find_lab(lab)
    chosen = [find_task(found, name) for name in tasks or []]
    with interruptible("check"):
        raise typer.Exit(check_lab(found, chosen, everything=everything, show_prints=show_prints))


@app.command(name="board")
def counts(
    lab: LabName,
    as_json: Annotated[bool, typer.Option("--json", help="as data: references, every run, the best")] = False,
) -> None:
    """Run what a lab counts beyond its points, and show it beside your best run and the course's."""
    from labkit.commands.counts import show_counts
    from labkit.suite.counts import NoBoard

    found = find_lab(lab)
    with interruptible("board"):
        try:
            status = show_counts(found, as_json=as_json)
        except NoBoard as error:
            sys.exit(f"lab board: {error}")
    raise typer.Exit(status)


@app.command()
def hint(
    lab: LabName,
    task: Annotated[str | None, typer.Argument(help="a task; without it, the next one that is not done")] = None,
    again: Annotated[bool, typer.Option("--again", help="show the hints so far, and no new one")] = False,
) -> None:
    """Show the next hint of a task, one at a time."""
    from labkit.commands.hints import hint_lines

    for line in hint_lines(find_lab(lab), task, again=again):
        typer.echo(line)


@app.command()
def watch(lab: LabName) -> None:
    """Run a lab's suite again whenever its file is saved, and say what changed. Ctrl-C ends it."""
    from labkit.commands.watch import watch_lab

    with interruptible("watch"):
        watch_lab(find_lab(lab))


@app.command()
def setup() -> None:
    """Have git overlook what uv adds to uv.lock in this clone. Nothing else is touched."""
    from labkit.commands.setup import set_up

    typer.echo(set_up(ROOT))


def labs_named(names: list[str]) -> list[Lab]:
    """The labs that `names` names; all when it is empty."""
    return [find_lab(name) for name in names] or find_labs()


add_bench_commands(app)
app.command()(trace)
app.add_typer(kernel_app, name="kernel")
app.command()(ring)
if (ROOT / "labstaff").is_dir():  # comes with the instructor's tree, and brings its own commands
    importlib.import_module("labstaff.commands").add_commands(app)

if __name__ == "__main__":
    main()
