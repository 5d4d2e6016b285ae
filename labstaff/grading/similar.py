"""Finds submissions that are nearly the same: shared runs of syntax, whatever the names of variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import NamedTuple

LEAST_RUNS = 60
NEAR = 0.9


class Group(NamedTuple):
    """Students each of whose code is nearly the same as another's of the group, and the least share that linked two."""

    students: tuple[str, ...]
    share: float


def similar_groups(syntax: Mapping[str, Collection[int]], stub: Collection[int], near: float = NEAR) -> list[Group]:
    """The groups of students whose files are alike, the largest first.

    Args:
        syntax: the runs of syntax of each student's file (`labstaff.grader.source`).
        stub: those of the released file, which do not count.
        near: the least share (of shared runs among all runs of the two) at which two belong together.

    Short files are left out: there are only so many ways to write a few lines.
    """
    runs = {student: frozenset(mine) - frozenset(stub) for student, mine in sorted(syntax.items())}
    by_content: dict[frozenset[int], list[str]] = {}
    for student, mine in runs.items():
        if len(mine) >= LEAST_RUNS:
            by_content.setdefault(mine, []).append(student)
    groups = [([mine], 1.0) for mine in by_content]
    for a, b in combinations(by_content, 2):
        if min(len(a), len(b)) >= near * max(len(a), len(b)) and (share := len(a & b) / len(a | b)) >= near:
            joined = [group for group in groups if a in group[0] or b in group[0]]
            contents = [mine for members, _ in joined for mine in members]
            groups = [group for group in groups if group not in joined]
            groups.append((contents, min(share, *(least for _, least in joined))))
    found = [
        Group(tuple(sorted(student for mine in contents for student in by_content[mine])), share)
        for contents, share in groups
    ]
    return sorted((each for each in found if len(each.students) > 1), key=lambda each: (-len(each.students), each))
