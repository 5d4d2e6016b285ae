"""The pages of a course with only some labs: nothing links to a missing lab."""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.labs.manifest import Lab
from labstaff.derive.course_map import PAGE, with_labs

LINK = re.compile(r"\[([^\]]*)\]\((?:[^()\s]*/)?lab(\d\d)_\w+[^()\s]*\)")
"""A link to a lab's folder, with the lab's number."""
COMMAND = re.compile(r"^uv run lab \w+ (\d\d)\b.*\n", re.MULTILINE)


def region(name: str) -> re.Pattern[str]:
    """The text between the comments `name: begin` and `name: end`, both lines included."""
    line = r"^[ \t]*(?:#|<!--) {}: {}(?: -->)?[ \t]*\n"
    return re.compile(line.format(name, "begin") + ".*?" + line.format(name, "end"), re.MULTILINE | re.DOTALL)


FOR_INSTRUCTORS = region("instructors")
INSTRUCTORS_PAGES = ("docs/instructors.md", "docs/syllabi.md", "docs/policies.md", "docs/evidence.md")
WITH_ALL_LABS, MARKS = region("all labs"), re.compile(r"^<!-- all labs: (?:begin|end) -->\n", re.MULTILINE)


def page_for(name: str, text: str, labs: Sequence[Lab]) -> str:
    """The repository's page `name` for a course of `labs`; unchanged if it links to no other lab.

    Chapters stay, since they can be read without their labs. A link to a lab that is left out becomes text.
    The course map lists `labs`, and loses what is true of all labs only (`all labs: begin` … `all labs: end`).
    """
    numbers = {lab.number for lab in labs}
    if all(link[2] in numbers for link in LINK.finditer(text)):
        return text
    text = WITH_ALL_LABS.sub("", text)
    if name == str(PAGE):
        text = with_labs(text, labs)
    return LINK.sub(lambda link: link[0] if link[2] in numbers else _unlinked(link[1]), text)


def readme_for(text: str, labs: Sequence[Lab]) -> str:
    """README.md, `text`, for a course of `labs`: its examples use the first of them."""
    first = labs[0]
    for pattern, new in (
        (r"labs/lab01_\w+", f"labs/{first.folder.name}"),
        (r"/src/\w+\.py", f"/src/{first.module}.py"),
        (r"test_\w+\.py::\w+", f"test_{first.module}.py::{first.tasks[0].tests}"),
        (r"lab watch 01 \w+", f"lab watch {first.number} {first.tasks[0].name}"),
        (r"(lab check|lab hint|lab watch|lab review|lab submit|lab chat|code for Lab) 01", rf"\1 {first.number}"),
    ):
        text = re.sub(pattern, new, text)
    numbers = {lab.number for lab in labs}
    return COMMAND.sub(lambda command: command[0] if command[1] in numbers else "", text)


def _unlinked(text: str) -> str:
    """A number alone is a table's entry."""
    return "–" if text.isdigit() else f"{text} (not in this course)"
