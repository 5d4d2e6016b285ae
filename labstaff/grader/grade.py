"""Grades one submission: the lab's own suite, hidden random inputs, the submission in a sandbox; results are stored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from labkit.labs.catalog import reviewed_lab
from labkit.labs.manifest import Lab, Task
from labkit.suite.forked import SLOW_IMPORTS, heavy_modules
from labkit.suite.limits import Limit
from labkit.suite.messages import ending_text, result_lines
from labkit.suite.results import Failure, How, Kind, State, SuiteRun, TestResult, task_share
from labkit.suite.source_check import Finding
from labstaff.grader.plain_text import lines, one_line
from labstaff.grader.results import GradedSubmission
from labstaff.grader.review import GradingFailed, grade_review
from labstaff.grader.runner import SandboxedRunner
from labstaff.grader.sandbox import TEMPORARY, SandboxBroken
from labstaff.grader.source import Source, read_source
from labstaff.grader.submission import Submission
from labstaff.grader.version import version_of

MAX_SECONDS = 300.0
"""By the clock, for one submission: then it has what it has earned. Solutions take at most a tenth of it."""

SUITE_SHARE = 0.5
"""The share of that time for the whole suite; the tasks that it has not reached then share the rest, one by one."""

TASK_CPU_SECONDS = 60.0
"""CPU time of such a task, its worker included, after which no further test of it is begun."""


class Grader:
    """A warm process for suites next to a warm sandbox for submissions: grades one after the other.

    Args:
        labs: the labs whose submissions come, where that is known: torch is imported once where one needs it.
        unsafe: do without bubblewrap (see `labstaff.grader.sandbox.Sandbox`).

    Raises:
        SandboxMissing: there is no bubblewrap or no libseccomp here, and `unsafe` was not given.
    """

    def __init__(self, labs: Iterable[Lab] = (), *, unsafe: bool = False) -> None:
        modules = (
            heavy_modules(*(file for lab in labs for file in lab.suite_files)) if labs else tuple(SLOW_IMPORTS.values())
        )
        self._unsafe = unsafe
        self._runner = SandboxedRunner(modules, unsafe=unsafe)

    def grade(self, submission: Submission, seed: int, source: Source | None = None) -> GradedSubmission:
        """The outcome for `submission`, with the suite's random inputs drawn from `seed`.

        Args:
            source: its file as it was checked, which is what runs; by default the file as it is.

        Raises:
            GradingFailed: grading does not work here, whatever the submission is.
        """
        if submission.problem:
            return _refused(submission, submission.problem)
        source = source or Source([], [], submission.source)
        try:
            if reviewed := reviewed_lab(submission.lab):
                return grade_review(reviewed, submission, seed, source, self._unsafe)
            return self._grade(submission, seed, source)
        except GradingFailed as error:
            self._require_worker(error)
            flag = f"{error}: 0 points, since other code can be graded here"
            return replace(_refused(submission, ""), status="graded", flags=[flag])

    def _require_worker(self, error: GradingFailed) -> None:
        """Raise `error` if the sandbox gives no worker to an empty submission either."""
        try:
            self._runner.require_worker()
        except SandboxBroken:
            raise error from None

    def _grade(self, submission: Submission, seed: int, source: Source) -> GradedSubmission:
        lab, key = submission.lab, submission.key
        flags, give_up = [], time.monotonic() + MAX_SECONDS
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
            Path(folder, f"{lab.module}.py").write_bytes(source.text)
            seconds = SUITE_SHARE * MAX_SECONDS
            run = self._run(lab, folder, seed, (), seconds, seconds)
            if unfinished := _unfinished(lab, run):
                flags = [f"its suite was cut short: {_why(run) or 'its process ended too often'}"]
                run = self._task_by_task(lab, folder, seed, run, unfinished, give_up)
        if not run.results:
            raise GradingFailed(f"the suite could not be run: {_why(run) or 'no test ran'}")
        graded = graded_run(lab, key, run, source.findings)
        return replace(graded, flags=[*flags, *graded.flags])

    def close(self) -> None:
        """End the processes."""
        self._runner.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _task_by_task(
        self, lab: Lab, folder: str, seed: int, cut: SuiteRun, unfinished: Sequence[Task], give_up: float
    ) -> SuiteRun:
        """A run that was cut short, with the tasks that it did not finish graded again, each in a run of its own.

        So an endless task costs its own points and no other's: what is not reached even so has failed. Tasks share the
        time until `give_up`.
        """
        again = {task.name for task in unfinished}
        results = [result for result in cut.results if result.task not in again]
        for n_before, task in enumerate(unfinished):
            seconds = max(1.0, (give_up - time.monotonic()) / (len(unfinished) - n_before))
            run = self._run(lab, folder, seed, (task.tests,), TASK_CPU_SECONDS, seconds)
            results += run.results
            if run.ended.how is not How.FINISHED:
                why = Failure(_why(run))
                for i in range(max(run.n_collected - len(run.results), 1)):
                    results.append(TestResult(f"not_reached_{i + 1}", task.name, State.NOT_RUN, why))
        return SuiteRun(results, len(results))

    def _run(
        self, lab: Lab, folder: str, seed: int, tests: tuple[str, ...], cpu_seconds: float, seconds: float
    ) -> SuiteRun:
        """One run of the suite. What breaks the sandbox, and not the submission's own worker, is tried again."""
        options, why = ("--src", folder, "--seed", str(seed)), ""
        for _attempt in range(2):
            run = self._runner.run(lab.label, *options, tests=tests, cpu_seconds=cpu_seconds, most_seconds=seconds)
            if run.ended.how not in (How.DIED, How.STOPPED):
                return run
            why = ending_text(run.ended)
        raise GradingFailed(f"grading failed twice on this submission: {why}")


def _why(run: SuiteRun) -> str:
    """Why a run did not come to its end, in one line; "" where it did."""
    return (ending_text(run.ended).splitlines() or [""])[0]


def _unfinished(lab: Lab, run: SuiteRun) -> list[Task]:
    """The tasks that a run did not finish: its time was over, or the tasks before had ended the process too often."""
    if run.ended.how is How.OUT_OF_TIME:
        begun = [result.task for result in run.results]
        last = next((i for i, task in enumerate(lab.tasks) if begun and task.name == begun[-1]), 0)
        return list(lab.tasks[last:])
    left_out = {result.task for result in run.results if _exceeded(result) is Limit.PROCESS_ENDS}
    return [task for task in lab.tasks if task.name in left_out]


def _exceeded(result: TestResult) -> Limit | None:
    return result.failure.exceeded.limit if result.failure.exceeded else None


def graded_run(lab: Lab, key: str, run: SuiteRun, findings: Sequence[Finding] = ()) -> GradedSubmission:
    """The result of a suite's run: every test, and each task's share of its points, by the rule that students see too.

    A task earns what `labkit.suite.results.task_share` says, and nothing where tests are missing, where the kernel
    measured more memory than the meters in the process, or where the source check says that a library does its work.
    """
    classes = {task.name: task.tests for task in lab.tasks}
    tests: dict[str, Literal["passed", "failed"]] = {}
    messages: dict[str, str] = {}
    causes: dict[str, str] = {}
    for result in run.results:
        name = f"{classes.get(result.task, '')}::{result.test}"
        tests[name] = "passed" if result.passed else "failed"
        if not result.passed:
            messages[name] = "\n".join(result_lines(result))
            causes |= {name: result.failure.cause} if result.failure.cause else {}
    complete = run.ended.how is How.FINISHED and len(run.results) == run.n_collected > 0
    flags: list[str] = []
    if not complete:
        flags.append(f"the suite did not run to its end: {_why(run) or 'tests are missing'}")
    if run.results and {result.state for result in run.results} <= {State.UNUSABLE, State.MISSING}:
        flags.append(f"no test could run: {result_lines(run.results[0])[0]}")
    no_points = {task.name: _beyond_memory_limit(task, run) or _borrowed(task, findings) for task in lab.tasks}
    flags += [f"{name}: no points: {why}" for name, why in no_points.items() if why]
    shares = {task.name: _share(task, run) if complete and not no_points[task.name] else 0.0 for task in lab.tasks}
    return GradedSubmission(
        lab.folder.name,
        key,
        "graded",
        flags=flags,
        tests=tests,
        messages=messages,
        causes=causes,
        shares=shares,
        findings=[str(each) for each in findings],
    )


def _share(task: Task, run: SuiteRun) -> float:
    return task_share(task, (result for result in run.results if result.task == task.name))


def _borrowed(task: Task, findings: Sequence[Finding]) -> str:
    """Where a library's function does the task's work; "" where it does not."""
    return next((str(finding) for finding in findings if task.name in finding.tasks), "")


def _beyond_memory_limit(task: Task, run: SuiteRun) -> str:
    """What a run under the kernel's bound needed, where the meters in the process found less; "" where they agree."""
    results = [result for result in run.results if result.task == task.name]
    inside = [result for result in results if result.kind is Kind.COST and not result.memory_limit]
    for result in results:
        too_much = result.memory_limit and _exceeded(result) is Limit.MEMORY
        if too_much and inside and all(each.passed for each in inside):
            first = result_lines(result)[0]
            return f"measured by the operating system, {first}; the meters in the process found less"
    return ""


def grade_now(grader: Grader, submission: Submission, seed: int) -> GradedSubmission:
    """The outcome for `submission`, complete as it is kept: how it went, and what its source shows."""
    syntax: list[int] = []
    if submission.problem:
        graded = _refused(submission, submission.problem)
    else:
        source = read_source(submission.source, submission.lab)
        graded, syntax = grader.grade(submission, seed, source), source.runs
    return replace(
        graded,
        version=version_of(submission.lab, seed),
        reason=one_line(graded.reason),
        flags=[lines(flag) for flag in graded.flags],
        messages={name: lines(message) for name, message in graded.messages.items()},
        causes={name: one_line(" ".join(cause.split())) for name, cause in graded.causes.items()},
        findings=[one_line(finding) for finding in graded.findings],
        syntax=syntax,
    )


def kept_at(results: Path, submission: Submission, seed: int) -> Path:
    """The file for the result of `submission` in the folder `results`, graded by this version of the course."""
    return results / submission.lab.folder.name / f"{submission.key}-{version_of(submission.lab, seed)}.json"


def with_flags_of(submission: Submission, graded: GradedSubmission) -> GradedSubmission:
    """A result, which holds for everybody with the same file, with what should be looked at in this submission."""
    return replace(graded, flags=[*submission.flags, *graded.flags])


def _refused(submission: Submission, reason: str) -> GradedSubmission:
    shares = dict.fromkeys((task.name for task in submission.lab.tasks), 0.0)
    return GradedSubmission(submission.lab.folder.name, submission.key, "refused", reason, shares=shares)
