"""A run on a mistake ends when the mistake is found, and not before."""

from __future__ import annotations

import os

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.forked import ForkedRunner
from labstaff.answers.mistakes import find_mistake

MISTAKE = find_mistake(find_lab("01"), "attention_no_maximum")
FLOAT16, LARGE, UNCHANGED = (
    f"TestStandardAttention::test_{name}" for name in ("float16_values", "large_logits", "arguments_are_left_alone")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of tests on the mistake, which ends when these words are said."""
    folder = tmp_path_factory.mktemp("mistake")
    MISTAKE.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        runner = ForkedRunner()

    def run_on_mistake(says, *tests):
        options = ("-p", "tests.until_found", "--says", says, "--src", str(folder))
        run = runner.run(MISTAKE.lab.label, *options, tests=tests)
        assert not run.problem
        return run

    with runner:
        yield run_on_mistake


def test_ends_with_the_first_that_says_it(run):
    found = run(MISTAKE.says, LARGE)
    assert found.n_collected == 2
    assert [verdict.passed for verdict in found.results] == [False]


def test_goes_on_until_each_test_has_failed(run):
    found = run(MISTAKE.says, FLOAT16, LARGE)
    assert found.n_collected == 3
    assert [verdict.test.split("[")[0] for verdict in found.results] == ["test_float16_values", "test_large_logits"]


@pytest.mark.parametrize(("says", "tests"), [("what no test says", (LARGE,)), (MISTAKE.says, (LARGE, UNCHANGED))])
def test_what_is_not_found_runs_to_the_end(run, says, tests):
    found = run(says, *tests)
    assert len(found.results) == found.n_collected == len(tests) + 1
