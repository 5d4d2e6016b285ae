"""The suites hold no answers: no function of theirs, under a task's name, earns more than half of it."""

from __future__ import annotations

import ast
import json

import pytest

from labkit.labs.catalog import find_labs, solution_file
from labkit.suite.forked import ForkedRunner
from labkit.suite.results import How, task_share
from tests.suite_runs import PRELOADED

pytestmark = pytest.mark.slow

RECORDED = """

import tests.pasted
for name in {tasks}:
    if not isinstance(globals()[name], type):
        globals()[name] = tests.pasted.recorded(globals()[name])
"""
PASTED = """

def {task}(*args, **kwargs):
    import importlib
    import sys

    module = sys.modules.get({module!r}) or importlib.import_module({module!r})
    return getattr(module, {name!r})(*args, **kwargs)
"""


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_no_helper_is_an_answer(lab, tmp_path):
    """Helpers that give a task's results on its first tests' inputs are run against all of its tests."""
    solution = solution_file(lab).read_text(encoding="utf-8")
    file = tmp_path / solution_file(lab).name
    earned = {}
    with ForkedRunner(PRELOADED) as runner:
        file.write_text(solution + RECORDED.format(tasks=[task.name for task in lab.tasks]), encoding="utf-8")
        functions = {node.name for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef)}
        tests = tuple(task.tests for task in lab.tasks if task.name in functions)
        run = runner.run(lab.label, "--src", str(tmp_path), "-p", "tests.pasted", tests=tests)
        assert run.ended.how is How.FINISHED, run.ended
        found = json.loads((tmp_path / "pasted.json").read_text(encoding="utf-8"))
        assert found, "no call was recorded"
        for task in lab.tasks:
            for helper in found.get(task.name, ()):
                module, name = helper.split(":")
                file.write_text(solution + PASTED.format(task=task.name, module=module, name=name), encoding="utf-8")
                run = runner.run(lab.label, "--src", str(tmp_path), tests=(task.tests,))
                share = task_share(task, run.results)
                print(f"{lab.label} {task.name} as {helper}: {share:.2f} of the points")
                if share > 0.5:
                    earned[f"{task.name} as {helper}"] = share
    assert not earned
