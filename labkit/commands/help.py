"""`lab --help`: the commands in a group for each reader, each with a whole sentence."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperGroup

STUDENTS, READERS = "Working on a lab", "Reading and measuring"
INSTRUCTORS, AUTHORS = "Teaching", "Changing the course"


class GroupedHelp(TyperGroup):
    """Lists commands by their `rich_help_panel`, in the order of the groups above."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group that has commands."""
        for title in (STUDENTS, READERS, INSTRUCTORS, AUTHORS):
            commands = [each for each in self.commands.values() if getattr(each, "rich_help_panel", "") == title]
            rows = [(each.name or "", _sentence(each)) for each in commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _sentence(command: Any) -> str:
    """The first paragraph of a command's help, on one line."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
