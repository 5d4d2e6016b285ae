"""What calibration has found of each limit, and the table of it that is committed."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from typing import NamedTuple

from labkit.labs.catalog import find_labs
from labkit.testing.margins import Margin
from labstaff.calibrate.runs import Outcome

MOST_USED, LEAST_USED = 0.75, 1.30
"""Of a limit: what a right answer may use at most, and what a mistake that it is there for must use at least."""

CAPACITIES = ("bytes of SRAM", "bytes of the budget")
"""The kinds of a limit that good answers come close to: blocks are chosen to fill a memory."""
COLUMNS = ("lab", "task", "test", "what", "limit", "right at most", "by", "mistakes at least", "mistake")


class Limit(NamedTuple):
    """A comparison of a suite: the test's parameters, and numbers in the name of what is compared, left out."""

    lab: str
    test: str
    what: str
    kind: str


@dataclass
class Shares:
    """Of a limit: the largest share that a right answer used, the smallest by which a mistake was found, and whose."""

    right: float = 0.0
    by: str = ""
    mistaken: float | None = None
    mistake: str = ""


@dataclass
class Found:
    """What the outcomes say."""

    shares: dict[Limit, Shares] = field(default_factory=lambda: defaultdict(Shares))
    n_right: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Judged right runs by lab and mode."""
    refused: list[str] = field(default_factory=list)
    n_mistaken: int = 0
    let_pass: list[str] = field(default_factory=list)
    """Mistakes that no test found, at which seed."""

    def too_tight(self) -> list[str]:
        """A line for each limit of which right answers use too much, the worst first."""
        tight = sorted((-each.right, limit, each) for limit, each in self.shares.items() if _is_tight(limit, each))
        return [
            f"{' '.join(limit)}: a right answer used {each.right:.2f} of it ({each.by})" for _, limit, each in tight
        ]

    def too_wide(self) -> list[str]:
        """A line for each limit that a mistake is found by, and not by enough, the worst first."""
        near = [(each.mistaken, limit, each) for limit, each in self.shares.items() if each.mistaken is not None]
        return [
            f"{' '.join(limit)}: a mistake used only {share:.2f} of it ({each.mistake})"
            for share, limit, each in sorted(near, key=lambda one: one[:2])
            if share < LEAST_USED
        ]

    def exact(self) -> int:
        """Of how many limits right answers use all: the count that was asked for."""
        return sum(each.right == 1 and limit.kind != "tolerance" for limit, each in self.shares.items())

    def table(self) -> str:
        """A line of CSV for each limit, those of which right answers use most first."""
        tasks = {(lab.label, task.tests): task.name for lab in find_labs() for task in lab.tasks}
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        for limit, each in sorted(self.shares.items(), key=lambda one: (one[0].lab, -one[1].right, one[0])):
            least = "" if each.mistaken is None else f"{each.mistaken:.3g}"
            task = tasks[limit.lab, limit.test.split("::")[0]]
            test = limit.test.split("::")[1]
            table.writerow(
                [limit.lab, task, test, limit.what, limit.kind, f"{each.right:.3f}", each.by, least, each.mistake]
            )
        return text.getvalue()


def found_in(outcomes: Iterable[Outcome]) -> Found:
    """What the outcomes say of each limit.

    A mistake often breaks several limits of a test. The one that it breaks by the most is there for it.
    """
    found = Found()
    for outcome in outcomes:
        if outcome.right:
            found.n_right[outcome.lab, outcome.mode] += 1
            found.refused += [f"{outcome.lab}, {outcome}: {test}" for test in outcome.failed]
            for test, margin in outcome.each():
                shares = found.shares[_limit(outcome, test, margin)]
                if margin.share >= shares.right:
                    shares.right, shares.by = margin.share, str(outcome)
            continue
        found.n_mistaken += 1
        if not outcome.failed:
            found.let_pass.append(f"{outcome.lab}, {outcome}")
        worst: dict[str, tuple[float, Limit]] = {}
        for test, margin in outcome.each():
            limit = _limit(outcome, test, margin)
            worst[test] = max(worst.get(test, (0.0, limit)), (margin.share, limit))
        for share, limit in worst.values():
            shares = found.shares[limit]
            if share > 1 and (shares.mistaken is None or share < shares.mistaken):
                shares.mistaken, shares.mistake = share, f"{outcome.answer}, seed {outcome.seed}"
    return found


def _is_tight(limit: Limit, shares: Shares) -> bool:
    """More than its share, of what is no capacity (made to be used up) nor a count that was asked for, exactly."""
    if limit.kind in CAPACITIES or (shares.right == 1 and limit.kind != "tolerance"):
        return False
    return shares.right > MOST_USED


def _limit(outcome: Outcome, test: str, margin: Margin) -> Limit:
    return Limit(outcome.lab, test, re.sub(r"\d[\d,.]*(?= |$|,)", "n", margin.what), margin.kind)
