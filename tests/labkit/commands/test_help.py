"""`lab --help`: every command once, in whole sentences, students' first."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from labkit.commands.app import app


def test_help_lists_students_commands_first_in_whole_sentences():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.partition("[ARGS]...")[2]
    students, _, rest = shown.partition("\nReading and measuring:\n")
    readers, _, teaching = rest.partition("\nTeaching:\n")
    for section, name in ((students, "check"), (students, "hint"), (readers, "bench"), (teaching, "grade")):
        assert f"  {name} " in section
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", shown, re.MULTILINE)
    assert sorted(listed) == sorted(each.name or each.callback.__name__ for each in app.registered_commands)
