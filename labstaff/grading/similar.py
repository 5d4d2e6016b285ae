"""Finds submissions that are nearly the same, for a human to look at: shared runs of syntax, whatever the names."""

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
        syntax: student → the file's runs of syntax (`labstaff.grader.source`).
        stub: those of the file that was handed out, which do not count.
        near: the least share (of shared runs among all runs of the two) at which two belong together.

    Short files are left out: there are only so many ways to write a few lines.
    """
    handed_out = frozenset(stub)
    runs = {student: frozenset(mine) - handed_out for student, mine in sorted(syntax.items())}
    of_content: dict[frozenset[int], list[str]] = {}
    for student, mine in runs.items():
        if len(mine) >= LEAST_RUNS:
            of_content.setdefault(mine, []).append(student)
    groups = {mine: mine for mine in of_content}  # a member of the same group, up to the one that stands for it
    shares: dict[frozenset[int], float] = {}

    def head(mine: frozenset[int]) -> frozenset[int]:
        while groups[mine] is not mine:
            mine = groups[mine]
        return mine

    for a, b in combinations(of_content, 2):
        if min(len(a), len(b)) < near * max(len(a), len(b)):
            continue
        share = len(a & b) / len(a | b)
        if share >= near:
            one, other = head(a), head(b)
            least = min(share, shares.get(one, 1.0), shares.get(other, 1.0))
            groups[other] = one
            shares[one] = least
    members: dict[frozenset[int], list[str]] = {}
    for mine, students in of_content.items():
        members.setdefault(head(mine), []).extend(students)
    found = [Group(tuple(sorted(each)), shares.get(mine, 1.0)) for mine, each in members.items() if len(each) > 1]
    return sorted(found, key=lambda group: (-len(group.students), group.students))
