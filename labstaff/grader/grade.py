"""Grades one submission: the lab's own suite, hidden random inputs, the submission in a sandbox; results are stored."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from labkit.labs.manifest import Lab, Task
from labkit.suite.forked import DIED, HEAVY, heavy_modules
from labkit.suite.results import Kind, State, TestResult, task_points
from labkit.suite.review import Finding
from labkit.suite.run import OVERTIME, SuiteRun
from labkit.testing.outside import NEEDS_MORE
from labstaff.grader.plain_text import lines, one_line
from labstaff.grader.results import GradedSubmission
from labstaff.grader.runner import SandboxedRunner
from labstaff.grader.sandbox import BROKEN
from labstaff.grader.source import read_source
from labstaff.grader.submission import Submission
from labstaff.grader.version import version_of
from labstaff.grader.withheld import withheld_points

SUITE_CPU_SECONDS = 300.0
"""CPU time of one submission's suite, its worker included, after which no further test of it is begun.

Then the tasks that were not reached are graded one by one. A busy machine takes none of it away: see `WALL_FACTOR`.
"""

TASK_CPU_SECONDS = 60.0
"""The same for each of those: both, and what the last test takes in each run, is what a submission costs at most."""

WALL_FACTOR = 10.0
"""How often as long a run may last by the clock: for a submission that waits and uses no CPU time."""

NOT_JUDGED = "the rest is not graded"
"""What a test reports that was left out, since the worker had ended too often (`labstaff.grader.remote`)."""


class JudgeFailed(Exception):
    """Grading gave no result, through no fault of the submission: try again."""


class Grader:
    """A warm process for suites next to a warm sandbox for submissions: grades one after the other.

    Args:
        labs: the labs whose submissions come, where that is known: torch is imported once where one needs it.
        unsafe: do without bubblewrap (see `labstaff.grader.sandbox.Sandbox`).

    Raises:
        SandboxMissing: there is no bubblewrap or no libseccomp here, and `unsafe` was not given.
    """

    def __init__(self, labs: Iterable[Lab] = (), *, unsafe: bool = False) -> None:
        modules = heavy_modules(*(file for lab in labs for file in lab.suite_files)) if labs else tuple(HEAVY.values())
        self._runner = SandboxedRunner(modules, unsafe=unsafe)

    def grade(self, submission: Submission, seed: int, findings: Sequence[Finding] = ()) -> GradedSubmission:
        """The outcome for `submission`, with the suite's random inputs drawn from `seed`.

        Args:
            findings: what the review found in its source.

        Raises:
            JudgeFailed: grading did not work; the submission's own faults are in the result.
        """
        lab, key = submission.lab, submission.key
        if submission.problem:
            return _refused(submission, submission.problem)
        flags = []
        with tempfile.TemporaryDirectory(prefix="graded-") as folder:
            Path(folder, f"{lab.module}.py").write_bytes(submission.source)
            run = self._run(lab, folder, seed, (), SUITE_CPU_SECONDS)
            if unfinished := _unfinished(lab, run):
                why = run.problem.splitlines()[0] if run.problem else "its process ended too often"
                flags = [f"its suite was cut short: {why}"]
                run = self._task_by_task(lab, folder, seed, run, unfinished)
        if not run.results:
            raise JudgeFailed(f"the suite could not be run: {(run.problem or 'no test ran').splitlines()[0]}")
        graded = graded_run(lab, key, run, findings)
        return replace(graded, flags=[*flags, *graded.flags])

    def close(self) -> None:
        """End the processes."""
        self._runner.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _task_by_task(self, lab: Lab, folder: str, seed: int, cut: SuiteRun, unfinished: Sequence[Task]) -> SuiteRun:
        """A run that was cut short, with the tasks that it did not finish graded again, each in a run of its own.

        So an endless task costs its own points and no other's: what is not reached even so has failed.
        """
        again = {task.name for task in unfinished}
        verdicts = [verdict for verdict in cut.results if verdict.task not in again]
        for task in unfinished:
            run = self._run(lab, folder, seed, (task.tests,), TASK_CPU_SECONDS)
            verdicts += run.results
            if run.problem:
                why = (f"not reached: {run.problem.splitlines()[0]}",)
                for i in range(max(run.n_collected - len(run.results), 1)):
                    verdicts.append(TestResult(f"not_reached_{i + 1}", task.name, State.TOO_SLOW, why))
        return SuiteRun(verdicts, len(verdicts))

    def _run(self, lab: Lab, folder: str, seed: int, tests: tuple[str, ...], cpu_seconds: float) -> SuiteRun:
        """One run of the suite. What breaks the sandbox, and not the submission's own worker, is tried again."""
        options, why = ("--src", folder, "--seed", str(seed)), ""
        for _attempt in range(2):
            seconds = WALL_FACTOR * cpu_seconds
            run = self._runner.run(lab.label, *options, tests=tests, cpu_seconds=cpu_seconds, seconds=seconds)
            if BROKEN not in run.problem and not run.problem.startswith(DIED):
                return run
            why = next((line.strip("! ") for line in run.problem.splitlines() if BROKEN in line), run.problem)
        raise JudgeFailed(f"grading failed twice on this submission: {why}")


def _unfinished(lab: Lab, run: SuiteRun) -> list[Task]:
    """The tasks that a run did not finish: its time was over, or the tasks before had ended the process too often."""
    if run.problem.startswith(OVERTIME):
        begun = [verdict.task for verdict in run.results]
        last = next((i for i, task in enumerate(lab.tasks) if begun and task.name == begun[-1]), 0)
        return list(lab.tasks[last:])
    spent = {verdict.task for verdict in run.results if any(NOT_JUDGED in line for line in verdict.lines)}
    return [task for task in lab.tasks if task.name in spent]


def graded_run(lab: Lab, key: str, run: SuiteRun, findings: Sequence[Finding] = ()) -> GradedSubmission:
    """The result of a suite's run: every test, and each task's points, by the rule that students see too.

    A task earns what `labkit.suite.results.task_points` says, and nothing where tests are missing.
    """
    classes = {task.name: task.tests for task in lab.tasks}
    tests: dict[str, Literal["passed", "failed"]] = {}
    messages: dict[str, str] = {}
    for verdict in run.results:
        name = f"{classes.get(verdict.task, '')}::{verdict.test}"
        tests[name] = "passed" if verdict.passed else "failed"
        if not verdict.passed:
            messages[name] = "\n".join(verdict.lines)
    complete = not run.problem and len(run.results) == run.n_collected > 0
    flags: list[str] = []
    if not complete:
        flags.append(f"the suite did not run to its end: {(run.problem or 'tests are missing').splitlines()[0]}")
    flags += [f"{task.name}: no points: {why}" for task in lab.tasks if (why := _hidden_memory(task, run))]
    tasks = {task.name: _points(task, run) if complete else 0.0 for task in lab.tasks}
    return GradedSubmission(
        lab.folder.name,
        key,
        "graded",
        flags=flags,
        tests=tests,
        messages=messages,
        tasks=tasks,
        findings=[str(each) for each in findings],
        withheld=withheld_points(lab, findings, run.results, tasks),
    )


def _points(task: Task, run: SuiteRun) -> float:
    verdicts = [verdict for verdict in run.results if verdict.task == task.name]
    return 0.0 if _hidden_memory(task, run) else task_points(task, verdicts)


def _hidden_memory(task: Task, run: SuiteRun) -> str:
    """What a run under the kernel's bound needed, where the meters in the process found less; "" where they agree."""
    verdicts = [verdict for verdict in run.results if verdict.task == task.name]
    inside = [verdict for verdict in verdicts if verdict.kind is Kind.SMALL and not verdict.outside]
    for verdict in verdicts:
        too_much = [line for line in verdict.lines if NEEDS_MORE in line]
        if verdict.outside and too_much and inside and all(each.passed for each in inside):
            return f"measured by the operating system, {too_much[0]}; the meters in the process found less"
    return ""


def grade_now(grader: Grader, submission: Submission, seed: int) -> GradedSubmission:
    """The outcome for `submission`, complete as it is kept: how it went, and what its source shows."""
    syntax: list[int] = []
    if submission.problem:
        graded = _refused(submission, submission.problem)
    else:
        found, syntax = read_source(submission.source, submission.lab)
        graded = grader.grade(submission, seed, found)
    return replace(
        graded,
        version=version_of(submission.lab, seed),
        reason=one_line(graded.reason),
        flags=[lines(flag) for flag in graded.flags],
        messages={name: lines(message) for name, message in graded.messages.items()},
        findings=[one_line(finding) for finding in graded.findings],
        syntax=syntax,
    )


def kept_at(results: Path, submission: Submission, seed: int) -> Path:
    """The file for the result of `submission` in the folder `results`, graded by this version of the course."""
    return results / submission.lab.folder.name / f"{submission.key}-{version_of(submission.lab, seed)}.json"


def of_submission(graded: GradedSubmission, submission: Submission, looked_at: Collection[str]) -> GradedSubmission:
    """A result, which holds for everybody with the same file, as it stands for this submission.

    Points that wait for the instructor's look are taken off, unless the submission's key is in `looked_at`.
    """
    flags = [*submission.flags, *graded.flags]
    if submission.key in looked_at:
        return replace(graded, flags=flags, findings=[], withheld={})
    tasks = {name: round(points - graded.withheld.get(name, 0.0), 4) for name, points in graded.tasks.items()}
    return replace(graded, flags=flags, tasks=tasks)


def _refused(submission: Submission, reason: str) -> GradedSubmission:
    tasks = dict.fromkeys((task.name for task in submission.lab.tasks), 0.0)
    return GradedSubmission(submission.lab.folder.name, submission.key, "refused", reason, tasks=tasks)
