"""Judges one submission: the lab's own suite, hidden random inputs, an answer in a sandbox; the result is kept."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab, Task
from labkit.suite.prefork import DIED, OVERTIME, SUITE_SECONDS, WarmRunner, heavy_modules
from labkit.suite.results import task_points
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import Kind, Verdict
from labkit.testing.outside import NEEDS_MORE
from labstaff.judge.results import JudgedSubmission, load, path_of, save
from labstaff.judge.sandbox import BROKEN
from labstaff.judge.submission import Submission, read_submission

ALWAYS = ("labstaff.judge.proxy",)
IDLE_BODIES = (
    "return None",
    "return args[0] if args else 0",
    "return args[-1] if args else 0",
    "return args[:2]",
    "return args[-1], args[0]",
    "x = getattr(args[0], 'T', args[0]); return x, x",
    "import numpy as np; return np.array([[np.nan]]), np.array([[np.nan]])",
    "raise ValueError(f'{names} {[getattr(x, \"shape\", x) for x in args]} {kwargs}')",
)
"""What answers do that do nothing."""


_free: dict[str, frozenset[str]] = {}
_free_lock = threading.Lock()


class JudgeFailed(Exception):
    """The judge did not come to a result, through no fault of the submission: try again."""


class Judge:
    """A warm process for suites beside a warm sandbox for answers: judges one submission after the other.

    Args:
        unsafe: do without bubblewrap (see `labstaff.judge.sandbox.Sandbox`).

    Raises:
        SandboxMissing: there is no bubblewrap here, and `unsafe` was not given.
    """

    def __init__(self, *, unsafe: bool = False) -> None:
        if not unsafe:
            from labstaff.judge.sandbox import require_bubblewrap

            require_bubblewrap()
        self.unsafe = unsafe
        self._runner: WarmRunner | None = None
        self._warm: set[str] = set()

    def judge(self, submission: Submission, seed: int) -> JudgedSubmission:
        """The outcome for `submission`, with the suite's random inputs drawn from `seed`.

        Raises:
            JudgeFailed: the judge could not work; the submission's own faults are in the result.
        """
        lab, key = submission.lab, submission.key
        if submission.problem:
            return _refused(submission, submission.problem)
        run = self._judged(lab, submission.source, seed)
        free = self.free_tests(lab)
        if not run.verdicts and not run.problem.startswith(OVERTIME):
            raise JudgeFailed(f"the suite could not be run: {(run.problem or 'no test ran').splitlines()[0]}")
        return judged_run(lab, key, run, free)

    def free_tests(self, lab: Lab) -> frozenset[str]:
        """The tests that answers pass which do nothing: `TestClass::test_name`."""
        with _free_lock:  # judges that work side by side share what one of them has found
            if lab.label not in _free:
                runs = [self._judged(lab, _idle(lab, body), 0) for body in IDLE_BODIES]
                passed = {test_id(lab, verdict) for run in runs for verdict in run.verdicts if verdict.passed}
                _free[lab.label] = frozenset(passed)
        return _free[lab.label]

    def close(self) -> None:
        """End the processes."""
        if self._runner:
            self._runner.close()
        self._runner = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _judged(self, lab: Lab, source: bytes, seed: int) -> SuiteRun:
        with tempfile.TemporaryDirectory(prefix="judged-") as folder:
            (Path(folder) / f"{lab.module}.py").write_bytes(source)
            return self._run(lab, "--src", folder, "--sandboxed", "--seed", str(seed))

    def _run(self, lab: Lab, *options: str) -> SuiteRun:
        """One run of the suite. What breaks the judge, and not the answer's own process, is tried again in a new box.

        An answer can end its own cell, which its tests then tell. A box that has ended, a cell that could not be had
        and a suite's process that died are the judge's failures, whoever's turn it was.
        """
        why = ""
        for _attempt in range(2):
            try:
                run = self._runner_for(lab).run(lab.label, *options, seconds=SUITE_SECONDS)
            except RuntimeError as error:
                why = str(error)
            else:
                if BROKEN not in run.problem and not run.problem.startswith(DIED):
                    return run
                lines = run.problem.splitlines()
                why = next((line.strip("! ") for line in lines if BROKEN in line), lines[0])
            with contextlib.suppress(Exception):
                self.close()
            self._runner = None
        raise JudgeFailed(f"the judge failed twice on this submission: {why}")

    def _runner_for(self, lab: Lab) -> WarmRunner:
        """The warm process, begun anew for the first lab that needs more than those before."""
        needed = set(heavy_modules(lab.suite_file))
        if self._runner is not None and not needed <= self._warm:
            self.close()
        if self._runner is None:
            self._warm |= needed
            modules = (*sorted(self._warm), *ALWAYS)
            keep = "keep_unboxed" if self.unsafe else "keep_boxed"
            self._runner = WarmRunner(modules, prepare=f"labstaff.judge.sandbox:{keep}")
        return self._runner


def judged_run(lab: Lab, key: str, run: SuiteRun, free: Set[str] = frozenset()) -> JudgedSubmission:
    """The result of a suite's run: every test, and each task's points.

    A task earns as `task_points` says, and nothing where tests are missing. It earns only if a test passes
    that says something: not one that an answer passes which does nothing (`free`: that arguments are left alone, say),
    and, in a task with tests whose inputs are drawn at random, one of these. What stands in the suite to be read,
    anybody can write down.
    """
    tests: dict[str, str] = {}
    messages: dict[str, str] = {}
    for verdict in run.verdicts:
        name = test_id(lab, verdict)
        tests[name] = "passed" if verdict.passed else "failed"
        if not verdict.passed:
            messages[name] = "\n".join(verdict.lines)
    complete = not run.problem and len(run.verdicts) == run.n_collected > 0
    flags: list[str] = []
    if not complete:
        flags.append(f"the suite did not run to its end: {(run.problem or 'tests are missing').splitlines()[0]}")
    flags += [f"{task.name}: no points: {why}" for task in lab.tasks if (why := _hidden_memory(task, run))]
    whole = {task.name for task in lab.tasks} if complete else _tasks_before_the_end(run)
    tasks = {task.name: _points(lab, task, run, free, flags) if task.name in whole else 0.0 for task in lab.tasks}
    return JudgedSubmission(lab.folder.name, key, "judged", "", flags, tests, messages, tasks)


def test_id(lab: Lab, verdict: Verdict) -> str:
    """`TestClass::test_name`."""
    task = next((task for task in lab.tasks if task.name == verdict.task), None)
    return f"{task.tests if task else ''}::{verdict.test}"


def _points(lab: Lab, task: Task, run: SuiteRun, free: Set[str], flags: list[str]) -> float:
    verdicts = [verdict for verdict in run.verdicts if verdict.task == task.name]
    passed = [verdict for verdict in verdicts if verdict.passed]
    if _hidden_memory(task, run):
        return 0.0
    telling = [verdict for verdict in verdicts if test_id(lab, verdict) not in free]
    telling = [verdict for verdict in telling if verdict.drawn] or telling
    if not any(verdict.passed for verdict in telling):
        if passed:
            flags.append(
                f"{task.name}: no points for {len(passed)} of {len(verdicts)} tests: an answer that does nothing, "
                "or repeats the examples, passes them too"
            )
        return 0.0
    return task_points(task, verdicts)


def _tasks_before_the_end(run: SuiteRun) -> set[str]:
    """Of a run that was killed when its time was over, the tasks that it was through with."""
    if not run.problem.startswith(OVERTIME) or not run.verdicts:
        return set()
    return {verdict.task for verdict in run.verdicts} - {run.verdicts[-1].task}


def _hidden_memory(task: Task, run: SuiteRun) -> str:
    """What the meters in the answer's process did not see, though the kernel did; nothing where they agree."""
    verdicts = [verdict for verdict in run.verdicts if verdict.task == task.name]
    inside = [verdict for verdict in verdicts if verdict.kind is Kind.SMALL and not verdict.outside]
    for verdict in verdicts:
        too_much = [line for line in verdict.lines if NEEDS_MORE in line]
        if verdict.outside and too_much and inside and all(each.passed for each in inside):
            return f"its memory is hidden from the meters, which found nothing, and from outside {too_much[0]}"
    return ""


def _idle(lab: Lab, body: str) -> bytes:
    """An answer to every task that does nothing of what is asked; `names` are its arguments' names."""
    return "".join(
        f"def {task.name}(*args, **kwargs):\n    names = {task.signature!r}\n    {body}\n" for task in lab.tasks
    ).encode()


def judge_submission(
    lab_name: str, folder: Path, results: Path, judge: Judge | None = None, *, unsafe: bool = False
) -> JudgedSubmission:
    """The outcome for the submission of a lab in `folder` (or a zip archive); judged once, then found in `results`."""
    submission = read_submission(find_lab(lab_name), folder)
    path = path_of(results, submission.lab.folder.name, submission.key)
    kept = load(path)
    if kept is None:
        if judge is not None:
            kept = judge.judge(submission, hidden_seed(results))
        else:
            with Judge(unsafe=unsafe) as own:
                kept = own.judge(submission, hidden_seed(results))
        save(path, kept)
    return with_flags(kept, submission)


def with_flags(judged: JudgedSubmission, submission: Submission) -> JudgedSubmission:
    """A result, which holds for everybody with the same file, with what lies beside this one's file."""
    return replace(judged, flags=[*submission.flags, *judged.flags])


def hidden_seed(results: Path) -> int:
    """The seed of all random inputs in one course: drawn once, kept beside the results, seen by no student."""
    path = results / "seed"
    results.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(str(secrets.randbelow(2**31 - 2) + 2))
    return int(path.read_text())


def _refused(submission: Submission, reason: str) -> JudgedSubmission:
    tasks = dict.fromkeys((task.name for task in submission.lab.tasks), 0.0)
    return JudgedSubmission(submission.lab.folder.name, submission.key, "refused", reason, tasks=tasks)
