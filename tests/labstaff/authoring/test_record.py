"""What finds each mistake: recorded, by a test of its task that is there."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs
from labkit.suite.results import Ended, Failure, How, State, SuiteRun, TestResult
from labstaff.authoring.mistakes import find_mistake, mistakes_of, read_records
from labstaff.authoring.record import affected_classes, record_of

LABS = find_labs()


@pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])
def test_each_mistake_is_recorded_with_its_sentence_and_tests_that_are_there(lab):
    """A new mistake's: `python -m labstaff.authoring.record --missing`."""
    classes = {task.name: task.tests for task in lab.tasks}
    suite = "".join(file.read_text(encoding="utf-8") for file in lab.suite_files)
    mistakes, records = {mistake.name: mistake for mistake in mistakes_of(lab)}, read_records(lab)
    assert records.keys() == mistakes.keys()
    for name, record in records.items():
        assert record.found_by.startswith(f"{classes[mistakes[name].task]}::"), name
        assert record.found_by in record.failing or not record.failing, name
        tests = {record.found_by, *record.failing}
        assert all(f"def {test.partition('::')[2]}(" in suite for test in tests), name
        assert f"✗ {record.found_by.partition('::')[2]}" in "\n".join(record.message), name
        read = " ".join(line.strip() for line in record.message)
        assert mistakes[name].says in read, f"{name}: no message says {mistakes[name].says!r}"


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


def test_the_first_test_of_the_task_that_says_what_it_must_is_recorded(mistake):
    own, other = mistake.task, LABS[0].tasks[-1]
    results = [
        result(other.name, "test_a", mistake.says),
        result(own, "test_b", "off by 3"),
        result(own, "test_c[float16]", mistake.says),
        result(own, "test_c[float32]", "", State.PASSED),
        result(own, "test_d", mistake.says),
    ]
    record = record_of(mistake, SuiteRun(results))
    assert record.found_by == "TestStandardAttention::test_c"
    tests = [(other.tests, "a"), *(("TestStandardAttention", test) for test in "bcd")]
    assert record.failing == [f"{tests}::test_{test}" for tests, test in tests]
    assert "1 of 2 tests pass" in record.message[0] and mistake.says in "\n".join(record.message)
    with pytest.raises(
        LookupError, match=r"(?s)no test of standard_attention fails and says.*they say:.*test_b.*off by 3"
    ):
        record_of(mistake, SuiteRun(results[:2]))
    with pytest.raises(LookupError, match="pytest ended"):
        record_of(mistake, SuiteRun(results, ended=Ended(How.FAILED, detail="pytest ended with 4")))
