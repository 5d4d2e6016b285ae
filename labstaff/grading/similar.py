"""Finds submissions that are nearly the same: shared runs of syntax, whatever the names of variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import NamedTuple

MIN_RUNS = 60
NEAR = 0.9


class Group(NamedTuple):
    """Students each of whose code is nearly the same as another's of the group, and the least share that linked two."""

    students: tuple[str, ...]
    share: float


def similar_groups(syntax: Mapping[str, Collection[int]], stub: Collection[int]) -> list[Group]:
    """The groups of students whose files are alike, the largest first.

    Two belong together when they share at least `NEAR` of all runs of the two. Short files are left out: there are
    only so many ways to write a few lines.

    Args:
        syntax: the runs of syntax of each student's file (`labstaff.grader.source`).
        stub: those of the released file, which do not count.
    """
    runs = {student: frozenset(mine) - frozenset(stub) for student, mine in sorted(syntax.items())}
    groups = {student: Group((student,), 1.0) for student, mine in runs.items() if len(mine) >= MIN_RUNS}
    for a, b in combinations(groups, 2):
        if min(len(runs[a]), len(runs[b])) < NEAR * max(len(runs[a]), len(runs[b])):
            continue  # too few to share so many
        shared = len(runs[a] & runs[b])
        share = shared / (len(runs[a]) + len(runs[b]) - shared)
        if share >= NEAR:
            students = tuple(sorted({*groups[a].students, *groups[b].students}))
            groups |= dict.fromkeys(students, Group(students, min(share, groups[a].share, groups[b].share)))
    found = {group for group in groups.values() if len(group.students) > 1}
    return sorted(found, key=lambda each: (-len(each.students), each))
