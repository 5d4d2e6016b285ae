"""Instructors' pages of mistakes: each as a diff, with the messages of the tests that find it.

They hold pieces of the solutions, so the students' site leaves them out: `lab site OUT --instructors`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.labs.manifest import Lab
from labstaff.authoring.mistakes import Mistake, mistakes_of
from labstaff.authoring.show import diff_lines, message

OVERVIEW = "what_goes_wrong"
TITLE = "Mistakes, and the suite's messages"
INTRODUCTION = """\
{n_mistakes} mistakes that students make, or ways to avoid the work. Each is run on every commit and must be
found by the test that `solutions/labNN_name/mistakes/record.json` names. These pages hold pieces of the solutions:
they are for instructors, not for students.
"""
MEANS_SOMETHING = re.compile(r"([\\`*_$<>\[\]#|~])")


def mistake_pages(labs: Sequence[Lab]) -> dict[str, str]:
    """The pages' sources in Markdown, by their names: one that lists all mistakes, and one for each lab.

    Raises:
        MistakeError: a mistake is malformed, or its edit does not fit.
    """
    mistakes = {lab.label: mistakes_of(lab) for lab in labs}
    overview = [f"# {TITLE}", "", INTRODUCTION.format(n_mistakes=sum(map(len, mistakes.values())))]
    pages = {}
    for lab in labs:
        page = f"{OVERVIEW}/{lab.folder.name}"
        overview += _listed(lab, mistakes[lab.label], f"{page}.md")
        pages[page] = "\n".join(_lab_page(lab, mistakes[lab.label]))
    return {OVERVIEW: "\n".join(overview), **pages}


def _listed(lab: Lab, mistakes: list[Mistake], page: str) -> list[str]:
    lines = [f"## Lab {lab.number}: {lab.title}", ""]
    for task in lab.tasks:
        lines += [f"**`{task.name}`**", ""]
        lines += [f"- [`{m.name}`]({page}#{m.name}): {_plain(m.what)}" for m in mistakes if m.task == task.name]
        lines.append("")
    return lines


def _lab_page(lab: Lab, mistakes: list[Mistake]) -> list[str]:
    lines = [
        f"# Lab {lab.number}: what goes wrong",
        "",
        f"Mistakes in “{lab.title}”: each edit of the solution, and the",
    ]
    lines += ["message that a student who makes it reads.", ""]
    for task in lab.tasks:
        lines += [f"## {_plain(task.name)}", ""]
        for mistake in mistakes:
            if mistake.task == task.name:
                lines += [f"### `{mistake.name}`", "", _plain(mistake.what), ""]
                lines += _fenced("diff", diff_lines(mistake))
                lines += _fenced("output", [line.removeprefix("  ") for line in message(mistake)[1:]])
    return lines


def _fenced(language: str, lines: list[str]) -> list[str]:
    return [f"````{language}", *lines, "````", ""]


def _plain(text: str) -> str:
    """`text` as Markdown that shows it literally."""
    return MEANS_SOMETHING.sub(r"\\\1", text)
