"""Nothing that a student carries earns points by being pasted: each function of labkit, tried in every task's place."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs
from tests.labstaff.judge.pasting import CONTROL, LAB, RESULT, ROOMS, answer_of, modules_of
from tests.labstaff.judge.pytest_in_forks import Pytest

pytestmark = pytest.mark.slow

LABS = [lab for lab in find_labs() if not lab.draft]


@pytest.fixture(scope="module")
def run():
    """Runs of pytest in a process that has imported all that is tried: meters collect what it holds no more."""
    with Pytest([module for room in ROOMS for module in modules_of(room)]) as run:
        yield run


@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_no_function_of_labkit_is_an_answer(lab, run, tmp_path):
    (tmp_path / f"{lab.module}.py").write_text(answer_of(lab), encoding="utf-8")
    told = tmp_path / "passed"
    told.touch()
    arguments = [
        f"labs/{lab.folder.name}",
        "--src",
        str(tmp_path),
        "-p",
        "tests.labstaff.judge.pasting",
        "-p",
        "no:cacheprovider",
    ]
    verdicts = run(tmp_path / "verdicts", arguments, {LAB: lab.label, RESULT: str(told)})
    assert verdicts and all(verdict.passed for verdict in verdicts), "trying is what passes"
    passed = told.read_text(encoding="utf-8").splitlines()
    control = [test for test in passed if CONTROL in test]
    assert len({test.split("::")[1] for test in control}) > len(lab.tasks) // 2, "nothing passes: is anything tried?"
    others = sorted(set(passed) - set(control))
    assert not others, "these tests pass with what labkit holds:\n" + "\n".join(others)
