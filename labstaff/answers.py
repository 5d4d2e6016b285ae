"""The right and wrong answers kept beside each solution, and what each says of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.labs.catalog import solution_folder
from labkit.labs.manifest import Lab

WRONG_PER_TASK = 6
RIGHT_PER_LAB = 2
FIELD = re.compile(r"^(Task|Killed by|Says):\s*(.+?)\s*$", re.MULTILINE)


class AnswerError(ValueError):
    """An answer whose header does not say what it must; the message names the file."""


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible mistake: which task it is in, the tests that must fail on it, and what they must say."""

    file: Path
    mistake: str
    task: str
    killed_by: tuple[str, ...]
    says: str = ""


def right_answers(lab: Lab) -> list[Path]:
    """Answers that differ from the solution and must pass."""
    return sorted((solution_folder(lab) / "right").glob("*.py"))


def wrong_answers(lab: Lab) -> Iterator[WrongAnswer]:
    """Every wrong answer of the lab.

    Its docstring says the mistake in its first line, then `Task: NAME`, then one or more lines
    `Killed by: TestClass::test_name`, and, where a test recognises the mistake, `Says: TEXT` that its message contains.

    Raises:
        AnswerError: a header lacks one of these, or names a task or a test class that is not there.
    """
    for file in sorted((solution_folder(lab) / "wrong").glob("*.py")):
        yield read_wrong_answer(lab, file)


def read_wrong_answer(lab: Lab, file: Path) -> WrongAnswer:
    """One wrong answer, by its header; raises as `wrong_answers`."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    fields = FIELD.findall(docstring)
    tasks = [value for name, value in fields if name == "Task"]
    killed_by = tuple(value for name, value in fields if name == "Killed by")
    mistake = docstring.strip().split("\n")[0]
    if len(tasks) != 1 or not killed_by or not mistake or mistake.startswith(("Task:", "Killed by:")):
        raise AnswerError(f"{file}: expected a docstring: the mistake, `Task: NAME`, `Killed by: TestClass::test_name`")
    task = next((task for task in lab.tasks if task.name == tasks[0]), None)
    if task is None:
        raise AnswerError(f"{file}: Task: {tasks[0]} is none of {', '.join(task.name for task in lab.tasks)}")
    for test in killed_by:
        if not test.startswith(f"{task.tests}::test_"):
            raise AnswerError(f"{file}: Killed by: expected {task.tests}::test_…, found {test}")
    says = next((value for name, value in fields if name == "Says"), "")
    return WrongAnswer(file, mistake, task.name, killed_by, says)
