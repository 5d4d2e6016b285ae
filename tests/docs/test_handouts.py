"""Each lab's handout describes a task in the same parts, and its report is short."""

from __future__ import annotations

import re

import pytest

from labkit.labs.catalog import ROOT, find_labs
from labkit.labs.manifest import Lab

MAX_QUESTIONS, MAX_POINTS = 3, 14
PARTS = ("Returns", "Must not", "Refuses")
PART = re.compile(rf"\*\*({'|'.join(PARTS)})\.\*\*")
TASK = re.compile(r"^### `(\w+).*?$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
HANDOUTS = [lab.folder / "README.md" for lab in find_labs()]
TEMPLATE = ROOT / "labstaff" / "template" / "labs" / "lab00_new_lab" / "README.md"

by_handout = pytest.mark.parametrize("handout", [*HANDOUTS, TEMPLATE], ids=lambda path: path.parent.name)


def misplaced(section: str) -> str:
    """What is wrong with the parts of a task's section; nothing where they are as they should be."""
    parts = PART.findall(section)
    if not parts:
        return f"none of {', '.join(PARTS)}"
    if parts != [part for part in PARTS if part in parts]:
        return f"in this order: {', '.join(parts)}"
    inside = [part for part in parts if f"\n\n**{part}.**" not in section]
    return f"inside a paragraph: {', '.join(inside)}" if inside else ""


@by_handout
def test_a_task_is_described_in_parts_in_one_order(handout):
    sections = dict(TASK.findall(handout.read_text(encoding="utf-8")))
    assert sections
    assert not {task: wrong for task, section in sections.items() if (wrong := misplaced(section))}


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        ("\n\nThe result.\n", "none of Returns, Must not, Refuses"),
        ("\n\n**Refuses.** 0.\n\n**Returns.** 1.\n", "in this order: Refuses, Returns"),
        ("\n\n**Returns.** 1.\n\n**Returns.** 2.\n", "in this order: Returns, Returns"),
        ("\n\n**Returns.** 1. **Must not.** Loop.\n", "inside a paragraph: Must not"),
        ("\n\nx is a number.\n\n**Returns.** 1.\n\n**By hand.** 1.\n", ""),
    ],
)
def test_misplaced_parts_are_found(section, wrong):
    assert misplaced(section) == wrong


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_a_report_is_short(lab: Lab):
    assert 1 <= len(lab.questions) <= MAX_QUESTIONS
    assert lab.report_points <= MAX_POINTS
