"""The group of `lab`'s commands: sections of --help for each reader, and one line after Ctrl-C."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperGroup

from labkit.commands import INTERRUPTED

STUDENTS, READERS = "Working on a lab", "Reading and measuring"
INSTRUCTORS, AUTHORS = "Teaching", "Changing the course"


class LabGroup(TyperGroup):
    """Lists commands by their `rich_help_panel`, in the order of the sections above."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each kind of reader, with a whole sentence for each command."""
        for title in (STUDENTS, READERS, INSTRUCTORS, AUTHORS):
            commands = [each for each in self.commands.values() if getattr(each, "rich_help_panel", "") == title]
            if commands:
                with formatter.section(title):
                    formatter.write_dl([(each.name or "", _sentence(each)) for each in commands])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it with one line and the usual exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            command = f"lab {ctx.invoked_subcommand}" if ctx.invoked_subcommand else "lab"
            typer.echo(f"\n{command}: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def _sentence(command: Any) -> str:
    """The first paragraph of a command's help, on one line."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
