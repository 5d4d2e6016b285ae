"""Chooses exam questions from the mistakes: a task's code with one line wrong, and what the suite found.

A mistake makes a fair question if it is in one place, of two lines at most, and if the whole code around it is short
enough to be read in an exam. Comments are left out of the listing: some name the line that is wrong.
"""

from __future__ import annotations

import ast
import difflib
import functools
import io
import random
import tokenize
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from labkit.labs.catalog import solution_file
from labkit.labs.manifest import Lab
from labstaff.authoring.mistakes import Mistake, mistakes_of

MOST_LINES = 92
"""Of a listing, docstrings included: what fits a page or a little more."""
MOST_WRONG = 2
"""Lines that a mistake adds or replaces."""


class ExamError(ValueError):
    """The paper cannot be made; the message says what to change."""


@dataclass(frozen=True)
class Exercise:
    """A listing with one mistake, and its key.

    Attributes:
        mistake: the mistake in it.
        listing: the task's code with what it uses of its module, without comments, line by line.
        wrong: the numbers of the wrong lines, from 1.
        right: what they should be; empty where they should not be there.
        shown: the names that the listing defines.
        changed: the one of them that holds the mistake.
        not_shown: other tasks of the lab that the listing calls, which are right.
    """

    mistake: Mistake
    listing: tuple[str, ...]
    wrong: tuple[int, ...]
    right: tuple[str, ...]
    shown: frozenset[str]
    changed: str
    not_shown: tuple[str, ...]

    @property
    def name(self) -> str:
        """What no other exercise is called, `lab03/softmax_clipped`."""
        return f"{self.mistake.lab.label}/{self.mistake.name}"

    def gives_away(self, other: Exercise) -> bool:
        """Whether one of the two listings shows rightly what is wrong in the other."""
        if self.mistake.lab != other.mistake.lab:
            return False
        return self.changed in other.shown or other.changed in self.shown


def choose(labs: Sequence[Lab], n_questions: int, seed: int, asked: Collection[str]) -> list[Exercise]:
    """`n_questions` exercises, about as many from each lab, none of them `asked` before, in the labs' order.

    The same arguments choose the same exercises. No listing of the paper shows rightly what another has wrong.

    Args:
        labs: the labs that the paper is about.
        n_questions: how many.
        seed: chooses among the papers.
        asked: names of exercises of earlier papers.

    Raises:
        ExamError: the labs have fewer.
        MistakeError: a mistake is malformed.
    """
    chance = random.Random(seed)
    left = {lab.label: [each for each in exercises_of(lab) if each.name not in asked] for lab in labs}
    for exercises in left.values():
        chance.shuffle(exercises)
    pools = list(left.values())
    chance.shuffle(pools)  # with fewer questions than labs, not always the first labs
    chosen: list[Exercise] = []
    while len(chosen) < n_questions and any(pools):
        for exercises in pools:
            if exercises and len(chosen) < n_questions:
                chosen.append(exercises.pop(0))
                exercises[:] = [each for each in exercises if not each.gives_away(chosen[-1])]
    if len(chosen) < n_questions:
        raise ExamError(
            f"{len(chosen)} of {n_questions} questions can be made: no two of a paper are about the same function, and "
            "none is in an earlier paper of this folder. Name more labs, or ask for fewer questions"
        )
    return sorted(chosen, key=lambda each: each.mistake.lab.number)


def exercises_of(lab: Lab) -> list[Exercise]:
    """All exercises that the lab's mistakes make, in their order."""
    found = (exercise_of(mistake) for mistake in mistakes_of(lab))
    return [exercise for exercise in found if exercise]


def exercise_of(mistake: Mistake) -> Exercise | None:
    """The exercise that `mistake` makes, or None where it would not be fair."""
    if not (mistake.edit and mistake.record and any(line.startswith("  ✗ ") for line in mistake.record.message)):
        return None
    before = _parts(solution_file(mistake.lab).read_text(encoding="utf-8"))
    after = _parts(mistake.source())
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if len(changed) != 1 or changed[0] not in before or changed[0] not in after:
        return None
    others = {task.name for task in mistake.lab.tasks} - {mistake.task}
    shown = _reached(after, mistake.task, others)
    if changed[0] not in shown or shown != _reached(before, mistake.task, others):
        return None
    right, wrong = (_listing(parts, shown) for parts in (before, after))
    edits = [each for each in difflib.SequenceMatcher(None, right, wrong, False).get_opcodes() if each[0] != "equal"]
    if len(wrong) > MOST_LINES or len(edits) != 1:
        return None
    _, a, b, start, end = edits[0]
    if not 0 < end - start <= MOST_WRONG or b - a > MOST_WRONG:
        return None
    return Exercise(
        mistake=mistake,
        listing=tuple(wrong),
        wrong=tuple(range(start + 1, end + 1)),
        right=tuple(right[a:b]),
        shown=frozenset(shown),
        changed=changed[0],
        not_shown=tuple(sorted(others & _used(after, shown))),
    )


@functools.lru_cache(maxsize=8)
def _parts(source: str) -> dict[str, str]:
    """The text of each function, class and constant of a module, by name, without comments."""
    source = _without_comments(source)
    lines = source.split("\n")
    parts = {}
    for node in ast.parse(source).body:
        name = _name(node)
        if name:
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            parts[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return parts


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


def _without_comments(source: str) -> str:
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            rest = lines[row - 1][:column].rstrip()
            lines[row - 1] = rest or "#"
    return "\n".join(line for line in lines if line != "#")


def _reached(parts: dict[str, str], start: str, others: Collection[str]) -> set[str]:
    """`start` and all that it uses, directly or not, of `parts` without `others`."""
    reached: set[str] = set()
    waiting = {start}
    while waiting:
        reached |= waiting
        waiting = (_used(parts, waiting) & parts.keys()) - reached - set(others)
    return reached


def _used(parts: dict[str, str], names: Collection[str]) -> set[str]:
    return {used for name in names if name in parts for used in _names(parts[name])}


@functools.lru_cache(maxsize=512)
def _names(text: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))


def _listing(parts: dict[str, str], shown: Collection[str]) -> list[str]:
    """The parts in the module's order, an empty line between two."""
    texts = [text for name, text in parts.items() if name in shown]
    return "\n\n".join(texts).split("\n")
