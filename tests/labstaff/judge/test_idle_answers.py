"""Answers that do nothing of what is asked earn nothing, in any lab: what they pass says nothing."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs
from labkit.suite.prefork import WarmRunner
from labkit.suite.results import add_up, lab_points

pytestmark = pytest.mark.slow

LABS = find_labs()
BODIES = {
    "nothing": "return None",
    "the_first_argument": "return args[0] if args else 0",
    "the_last_argument": "return args[-1] if args else 0",
    "two_arguments": "return args[:2]",
    "two_others": "return args[-1], args[0]",
    "a_view": "x = getattr(args[0], 'T', args[0]); return x, x",
    "not_a_number": "import numpy as np; return np.array([[np.nan]]), np.array([[np.nan]])",
    "an_error_for_everything": "raise ValueError(f'{names} {[getattr(x, \"shape\", x) for x in args]} {kwargs}')",
}


def idle(lab, body: str) -> str:
    """An answer to every task that does nothing of what is asked; `names` are its arguments' names."""
    return "".join(
        f"def {task.name}(*args, **kwargs):\n    names = {task.signature!r}\n    {body}\n" for task in lab.tasks
    )


@pytest.fixture(scope="module")
def runner():
    with WarmRunner(("labkit.suite.prefork_torch", "matplotlib.pyplot")) as runner:
        yield runner


@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_an_idle_answer_earns_nothing(lab, runner, tmp_path):
    earned = {}
    for name, body in BODIES.items():
        (tmp_path / f"{lab.module}.py").write_text(idle(lab, body), encoding="utf-8")
        run = runner.run(lab.label, "--src", str(tmp_path))
        results = add_up(lab, run.verdicts)
        assert len(results) == len(lab.tasks), run.problem
        if points := lab_points(lab, results):
            passed = [f"{v.task}: {v.test}" for v in run.verdicts if v.passed and v.drawn and v.kind == "exact"]
            earned[name] = (points, passed)
    assert not earned, "a drawn test of an exact result that an idle answer passes needs another kind"
