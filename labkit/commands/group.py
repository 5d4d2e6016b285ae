"""The group of `lab`'s commands: titles of the panels of --help, and one line after Ctrl-C."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from labkit.commands import INTERRUPTED

STUDENTS, READERS = "Working on a lab", "Reading and measuring"
INSTRUCTORS, AUTHORS = "Teaching", "Changing the course"


class LabGroup(TyperGroup):
    """A group of commands that Ctrl-C ends quietly."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it with one line and the usual exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            command = f"lab {ctx.invoked_subcommand}" if ctx.invoked_subcommand else "lab"
            typer.echo(f"\n{command}: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
