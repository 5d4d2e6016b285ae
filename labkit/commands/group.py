"""The group of `lab`'s commands: titles of the panels of --help, and one line after Ctrl-C or for a bad text."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from labkit.commands import INTERRUPTED
from labkit.model.tokenizer import TextError

STUDENTS, READERS = "Working on a lab", "Reading and measuring"
INSTRUCTORS, AUTHORS = "Teaching", "Changing the course"


class LabGroup(TyperGroup):
    """A group of commands that end with one line after Ctrl-C, or for a text that is not Unicode."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C gives the usual exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(f"\n{_command(ctx)}: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except TextError as error:
            typer.echo(f"{_command(ctx)}: {error}", err=True)
            raise typer.Exit(1) from None


def _command(ctx: Any) -> str:
    return f"lab {ctx.invoked_subcommand or ''}".rstrip()
