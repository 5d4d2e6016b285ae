"""What finds each mistake: recorded in it, by a test of its task that is there."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs
from labkit.suite.results import Ended, Failure, How, State, TestResult
from labkit.suite.run import SuiteRun
from labstaff.authoring.found_by import affected_classes, finding_test, write
from labstaff.authoring.mistakes import find_mistake, mistakes_of

LABS = find_labs()


@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_each_mistake_names_a_test_of_its_task(lab):
    """A new mistake's: `python -m labstaff.authoring.found_by --missing`."""
    classes = {task.name: task.tests for task in lab.tasks}
    suite = "".join(file.read_text(encoding="utf-8") for file in lab.suite_files)
    for mistake in mistakes_of(lab):
        (found_by,) = mistake.found_by
        name, _, test = found_by.partition("::")
        assert name == classes[mistake.task] and f"def {test}(" in suite, mistake.name


def test_only_classes_that_see_a_change_are_run():
    lab = next(lab for lab in LABS if lab.number == "04")
    changed = find_mistake(lab, "traffic_formula").source()
    assert "TestTiledTraffic" in affected_classes(lab, changed)
    assert "TestCountTiles" not in affected_classes(lab, changed)


@pytest.fixture
def mistake():
    return find_mistake(LABS[0], "attention_always_float32")


def result(task, test, line, state=State.WRONG):
    return TestResult(test, task, state, Failure(line))


def test_the_first_test_of_the_task_that_says_what_it_must_is_found(mistake):
    own, other = mistake.task, LABS[0].tasks[-1].name
    results = [
        result(other, "test_a", mistake.says),
        result(own, "test_b", "off by 3"),
        result(own, "test_c[float16]", mistake.says),
        result(own, "test_d", mistake.says),
    ]
    assert finding_test(mistake, SuiteRun(results)) == "TestStandardAttention::test_c"
    with pytest.raises(LookupError, match="no test of standard_attention fails and says"):
        finding_test(mistake, SuiteRun(results[:2]))
    with pytest.raises(LookupError, match="pytest ended"):
        finding_test(mistake, SuiteRun(results, ended=Ended(How.FAILED, detail="pytest ended with 4")))


def test_it_is_written_once_into_its_own_table(mistake, tmp_path):
    file = tmp_path / mistake.file.name
    before = mistake.file.read_text(encoding="utf-8")
    file.write_text(before, encoding="utf-8")
    here = type(mistake)(**vars(mistake) | {"file": file})
    write(here, "TestA::test_b")
    write(here, "TestA::test_c")
    after = file.read_text(encoding="utf-8")
    assert after == before.replace(f'found_by = "{mistake.found_by[0]}"', 'found_by = "TestA::test_c"', 1)
