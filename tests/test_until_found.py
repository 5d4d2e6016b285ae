"""A run on a mistake ends when the mistake is found, and not before."""

from __future__ import annotations

import os

import pytest

from labkit.labs.catalog import ROOT, find_lab
from labkit.suite.forked import ForkedRunner
from labkit.suite.results import How
from labstaff.authoring.mistakes import find_mistake

MISTAKE = find_mistake(find_lab("01"), "attention_no_maximum")
RESULTS = "TestStandardAttention::test_results"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of tests on the mistake that ends once these words are reported."""
    folder = tmp_path_factory.mktemp("mistake")
    MISTAKE.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        runner = ForkedRunner()

    def run_on_mistake(says, *tests):
        options = ("-p", "tests.until_found", "--says", says, "--src", str(folder))
        run = runner.run(MISTAKE.lab.label, *options, tests=tests)
        assert run.ended.how is How.FINISHED, run.ended
        return run

    with runner:
        yield run_on_mistake


def test_ends_with_the_first_that_says_it(run):
    found = run(MISTAKE.says, RESULTS)
    *before, last = found.results
    assert all(result.passed for result in before) and not last.passed
    assert len(found.results) < found.n_collected


def test_goes_on_until_a_test_says_it(run):
    found = run("0/0, from a row", RESULTS)
    failed = [result for result in found.results if not result.passed]
    assert len(failed) > 1 and failed[-1] is found.results[-1]
    assert len(found.results) < found.n_collected


def test_what_no_test_says_runs_to_the_end(run):
    found = run("what no test says", RESULTS)
    assert len(found.results) == found.n_collected > 1
