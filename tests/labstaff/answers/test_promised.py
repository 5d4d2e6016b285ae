"""The versions that the course promises: all of them are tried, and what was found stands in CONTRIBUTING.md."""

from __future__ import annotations

import re
import tomllib

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import State, Verdict
from labstaff.answers import promised
from labstaff.answers.mistakes import mistakes_of
from labstaff.answers.promised import COLUMNS, LIBRARIES, NAMES, PROMISED, commands, judge_here, line, row

LAB = find_lab("01")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FLOORS = {each.split(">=")[0]: each.split(">=")[1] for each in PROJECT["dependencies"]}


def written_table() -> list[list[str]]:
    """The rows of the table in CONTRIBUTING.md, as cells."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = text.partition(line(*COLUMNS))[2].strip().splitlines()[1:]
    found = []
    for each in lines:
        if not each.startswith("|"):
            break
        found.append([cell.strip() for cell in each.strip("|").split("|")])
    return found


def test_every_promise_has_a_line_in_the_table():
    promises = [each.split(":") for each in PROMISED]
    rows = {(".".join(cells[0].split(".")[:2]), cells[1]): cells for cells in written_table()}
    assert list(rows) == [(python, NAMES[resolution]) for python, resolution in promises]
    for cells in rows.values():
        for share in cells[-2:]:
            n_well, n_all = map(int, re.fullmatch(r"(\d+) of (\d+)", share).groups())
            assert n_well == n_all > 0


def test_the_lowest_are_those_of_the_project():
    lowest = [cells for cells in written_table() if cells[1] == NAMES["lowest-direct"]]
    assert lowest
    for cells in lowest:
        for name, tried in zip(LIBRARIES, cells[2:], strict=False):
            assert re.fullmatch(rf"{re.escape(FLOORS[name])}(\.0)*", tried), f"{name}: {tried} is not the floor"


def test_the_lowest_python_is_the_projects():
    pythons = sorted(tuple(map(int, each.partition(":")[0].split("."))) for each in PROMISED)
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, pythons[0]))}"


def test_an_environment_has_the_projects_own_dependencies(tmp_path):
    make, install = commands("3.13:lowest-direct", tmp_path)
    assert make[make.index("--python") + 1] == "3.13"
    assert install[install.index("--resolution") + 1] == "lowest-direct"
    assert install[install.index("--requirements") + 1] == str(ROOT / "pyproject.toml")


class Runner:
    """A suite that finds what `finds` says, in no time."""

    finds = True

    def __init__(self, modules):
        pass

    def run(self, lab, *options, tests=()):
        if "--solutions" in options:
            state = State.PASSED if self.finds else State.WRONG
            return SuiteRun([Verdict("test_it", LAB.tasks[0].name, state, ("off by 1",))], 1)
        (mistake,) = [each for each in mistakes_of(LAB) if each.killed_by == tests][:1]
        said = (mistake.says or "off",) if self.finds else ("another thing",)
        return SuiteRun([Verdict(test.split("::")[1], mistake.task, State.WRONG, said) for test in tests], len(tests))

    def close(self):
        pass


@pytest.mark.parametrize("finds", [True, False])
def test_what_does_not_hold_is_told(monkeypatch, finds):
    monkeypatch.setattr(promised, "WarmRunner", Runner)
    monkeypatch.setattr(Runner, "finds", finds)
    monkeypatch.setattr(promised, "STUDENTS", () if finds else (("no-such-command",),))
    tried = judge_here([LAB], 1)
    assert (tried.n_solutions, tried.n_mistakes) == (1, len(LAB.tasks))
    if finds:
        assert tried.problems == []
        assert row("3.11:lowest-direct", tried).endswith(f"| 1 of 1 | {len(LAB.tasks)} of {len(LAB.tasks)} |")
    else:
        assert tried.n_passed == 0
        assert any("lab01: 1 tests refuse the solution: test_it: off by 1" in each for each in tried.problems)
        assert any("is not found: another thing" in each for each in tried.problems)
        assert any(each.startswith("lab no-such-command: ") for each in tried.problems)
