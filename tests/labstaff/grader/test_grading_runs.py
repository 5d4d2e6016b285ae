"""The runs of a grader: what it imports for them, how a run is cut short, and what is graded of the rest."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.forked import ForkedRunner
from labkit.suite.limits import Exceeded, Limit
from labkit.suite.messages import ending_text
from labkit.suite.results import Ended, Failure, How, State, SuiteRun, TestResult
from labstaff.grader.grade import MAX_SECONDS, TASK_CPU_SECONDS, Grader, GradingFailed
from labstaff.grader.sandbox import SandboxBroken
from labstaff.grader.submission import Submission

pytestmark = pytest.mark.slow

LAB = find_lab("01")
SOLUTION = solution_file(LAB).read_text(encoding="utf-8")


def runs_come_from(runner, monkeypatch):
    """Have `runner` take the place of the one that runs suites."""
    monkeypatch.setattr("labstaff.grader.grade.SandboxedRunner", runner)


class CutShort:
    """A runner whose whole run is cut in the second task's tests, and whose runs of that task never end."""

    def __init__(self, modules, unsafe):
        self.asked = []

    def run(self, lab, *options, tests, cpu_seconds, most_seconds):
        self.asked.append((cpu_seconds, most_seconds))
        first, second, *_ = LAB.tasks
        results = {task.name: [TestResult("test_it", task.name, State.PASSED, drawn=True)] for task in LAB.tasks}
        if not tests:
            return SuiteRun(
                results[first.name] + results[second.name],
                20,
                Ended(How.OUT_OF_TIME, Exceeded(Limit.CPU_TIME, 300)),
            )
        (task,) = [task for task in LAB.tasks if (task.tests,) == tests]
        if task is second:
            return SuiteRun(results[second.name], 4, Ended(How.OUT_OF_TIME, Exceeded(Limit.CPU_TIME, 60)))
        return SuiteRun(results[task.name], 1)

    def close(self):
        pass


def test_an_endless_task_costs_its_own_points(monkeypatch):
    """However a suite is cut short, what was not reached is graded task by task, within a bound."""
    runs_come_from(CutShort, monkeypatch)
    with Grader(unsafe=True) as grader:
        result = grader.grade(Submission(LAB, b"x = 1"), 1)
        asked = grader._runner.asked
    endless = LAB.tasks[1]
    assert {name: share for name, share in result.shares.items() if name != endless.name} == {
        task.name: 1.0 for task in LAB.tasks if task is not endless
    }
    assert result.shares[endless.name] == 1 / 4, "one of its four tests was reached"
    assert result.status == "graded"
    assert result.flags == ["its suite was cut short: the run did not end within 300 s of CPU time"]
    assert sum("did not end within 60 s" in message for message in result.messages.values()) == 3
    assert [cpu_seconds for cpu_seconds, _ in asked[1:]] == [TASK_CPU_SECONDS] * (len(LAB.tasks) - 1)
    shares = [1 / 2, *(1 / n_left for n_left in range(len(LAB.tasks) - 1, 0, -1))]  # no time passes here
    assert [seconds for _, seconds in asked] == pytest.approx([MAX_SECONDS * share for share in shares], rel=0.01)


def test_an_endless_submission_ends_by_its_cpu_time(tmp_path):
    """No further test is begun, and the results that there are stay."""
    (tmp_path / "profiling.py").write_text(f"{SOLUTION}\n\ndef standard_attention(*_):\n    while True: pass\n")
    with ForkedRunner() as warm:
        run = warm.run("lab01", "--src", str(tmp_path), cpu_seconds=0.75)
    assert ending_text(run.ended) == "the run did not end within 0.75 s of CPU time"
    assert 1 <= len(run.results) <= 10 < run.n_collected
    assert {result.state for result in run.results} <= {State.TOO_SLOW, State.PASSED}


def test_a_task_that_ends_its_process_leaves_the_others_their_tests(monkeypatch):
    """After so many ends of its process an answer's tests fail unrun: in a run of its own a task has its own count."""
    left_out = Failure(exceeded=Exceeded(Limit.PROCESS_ENDS, 40))

    class Spent(CutShort):
        def run(self, lab, *options, tests, cpu_seconds, most_seconds):
            first, *others = LAB.tasks
            slow = [TestResult("test_it", first.name, State.TOO_SLOW, Failure("still running"), drawn=True)]
            if tests:
                (task,) = [task for task in others if (task.tests,) == tests]
                return SuiteRun([TestResult("test_it", task.name, State.PASSED, drawn=True)], 1)
            rest = [TestResult("test_it", task.name, State.NOT_RUN, left_out, drawn=True) for task in others]
            return SuiteRun(slow + rest, len(LAB.tasks))

    runs_come_from(Spent, monkeypatch)
    with Grader(unsafe=True) as grader:
        result = grader.grade(Submission(LAB, b"x = 1"), 1)
    assert result.shares == {task.name: 1.0 if i else 0.0 for i, task in enumerate(LAB.tasks)}


def test_a_run_is_ended_by_the_clock_and_keeps_what_it_has(tmp_path):
    """Although events come all the time."""
    slow = (
        "import time\n\n\ndef slowly(function):\n    return lambda *a, **k: time.sleep(0.3) or function(*a, **k)\n\n\n"
    )
    (tmp_path / "profiling.py").write_text(f"{SOLUTION}\n{slow}standard_attention = slowly(standard_attention)\n")
    with ForkedRunner() as warm:
        run = warm.run("lab01", "--src", str(tmp_path), most_seconds=4.0)
    assert ending_text(run.ended) == "the run did not end within 4 s by the clock"
    assert 1 <= len(run.results) < run.n_collected


class Dies(CutShort):
    """A runner whose every run ends without a result."""

    broken = False

    def run(self, lab, *options, **_):
        return SuiteRun(ended=Ended(How.DIED, status=-9))

    def require_worker(self):
        if self.broken:
            raise SandboxBroken("no memory")


def test_what_cannot_be_graded_has_no_points_and_a_flag(monkeypatch):
    """Unless nothing can be graded here."""
    runs_come_from(Dies, monkeypatch)
    with Grader(unsafe=True) as grader:
        result = grader.grade(Submission(LAB, b"x = 1"), 1)
        assert (result.status, set(result.shares.values())) == ("graded", {0.0})
        assert result.flags[0].startswith("grading failed twice on this submission: the run ended without a result")
        monkeypatch.setattr(Dies, "broken", True)
        with pytest.raises(GradingFailed):
            grader.grade(Submission(LAB, b"x = 1"), 1)
