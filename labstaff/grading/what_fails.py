"""Which tests a class fails most, and with which message: what to teach again. No student is named in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.labs.manifest import Lab, Task
from labstaff.answers.mistakes import mistakes_of
from labstaff.grader.grade import hidden_seed, kept_at
from labstaff.grader.kept import results_of
from labstaff.grader.results import JudgedSubmission, load
from labstaff.grader.submission import read_submission
from labstaff.grading.gist import Words, cause
from labstaff.grading.many import find_submissions
from labstaff.grading.run import NothingToGrade

MOST_MESSAGES = 3
NOT_STARTED = "still raises NotImplementedError"


@dataclass(frozen=True)
class Said:
    """What failures of a test came to, and how many submissions read it."""

    gist: str
    count: int


@dataclass(frozen=True)
class Cause:
    """What the suite takes for the mistake, in whichever tests of a task, and how many submissions it told so.

    `mistakes` are the known ones of which it says the same.
    """

    task: str
    told: str
    count: int
    began: int
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FailedTest:
    """How many of those who began a task fail one of its tests, whatever its parameters; the commonest messages first.

    `began` counts submissions in which the task was written at all and the file could be used.
    """

    lab: Lab
    task: str
    test: str
    began: int
    failed: int
    said: tuple[Said, ...] = ()

    @property
    def share(self) -> float:
        """Which part of those who began fails it."""
        return self.failed / self.began if self.began else 0.0


@dataclass
class _Count:
    failed: int = 0
    gists: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ClassFailures:
    """What a class fails of one lab; `n_judged` submissions are in it, and `n_left_out` have no result that holds."""

    lab: Lab
    causes: Sequence[Cause]
    failures: Sequence[FailedTest]
    n_judged: int
    n_left_out: int = 0


def class_failures(submitted: Path, labs: Sequence[Lab]) -> list[ClassFailures]:
    """What the judge has found of the submissions in `submitted`, lab by lab; nothing is judged here.

    Raises:
        NothingToGrade: there are no submissions of these labs.
    """
    found = find_submissions(submitted, list(labs)) if submitted.is_dir() else []
    if not found:
        raise NothingToGrade(f"{submitted} holds no STUDENT/LAB folder for {', '.join(lab.label for lab in labs)}")
    results, seed = results_of(submitted.parent), hidden_seed(submitted.parent)
    told = []
    for lab in labs:
        mine = [each for each in found if each.lab == lab]
        kept = [load(kept_at(results, read_submission(lab, each.place), seed)) for each in mine]
        judged = [each for each in kept if each is not None]
        if mine:
            n_left_out = len(mine) - len(judged)
            told.append(ClassFailures(lab, causes_of(lab, judged), failures_of(lab, judged), len(judged), n_left_out))
    return told


def causes_of(lab: Lab, results: Sequence[JudgedSubmission]) -> list[Cause]:
    """What the suite takes for the mistakes of a class, the commonest first; a submission counts once for each."""
    words, mistakes = Words(lab), mistakes_of(lab)
    told: list[Cause] = []
    for task in lab.tasks:
        began = [each for each in results if _began(task, each)]
        counts: Counter[str] = Counter()
        known: dict[str, set[str]] = defaultdict(set)
        for result in began:
            messages = [message for of_test in _failed(task, result).values() for message in of_test]
            causes = {message: cause(words.gist(message)) for message in messages}
            counts.update({each for each in causes.values() if each})
            for message, why in causes.items():
                known[why] |= {m.name for m in mistakes if m.task == task.name and m.says and m.says in message}
        for why, count in counts.items():
            told.append(Cause(task.name, why, count, len(began), tuple(sorted(known[why]))))
    return sorted(told, key=lambda each: (-each.count, each.task, each.told))


def failures_of(lab: Lab, results: Sequence[JudgedSubmission]) -> list[FailedTest]:
    """Every test of the lab that somebody fails, the one that most fail first."""
    words = Words(lab)
    told: list[FailedTest] = []
    for task in lab.tasks:
        began = [each for each in results if _began(task, each)]
        counts: dict[str, _Count] = defaultdict(_Count)
        for result in began:
            for test, messages in _failed(task, result).items():
                counts[test].failed += 1
                counts[test].gists.update({words.gist(message) for message in messages})
        for test, count in counts.items():
            said = tuple(Said(gist, n) for gist, n in count.gists.most_common(MOST_MESSAGES))
            told.append(FailedTest(lab, task.name, test, len(began), count.failed, said))
    return sorted(told, key=lambda each: (-each.failed, -each.share, each.task, each.test))


def _began(task: Task, result: JudgedSubmission) -> bool:
    """Whether there is something of the task to judge: it is written, and the file is one that can be used."""
    mine = {name: state for name, state in result.tests.items() if name.split("::")[0] == task.tests}
    if result.status != "judged" or not mine:
        return False
    everywhere = {result.messages.get(name, "") for name in result.tests}
    unusable = len(everywhere) == 1 and "passed" not in result.tests.values()
    untouched = all(NOT_STARTED in result.messages.get(name, "") for name in mine)
    return not unusable and not untouched


def _failed(task: Task, result: JudgedSubmission) -> dict[str, list[str]]:
    """The messages of the task's failed tests, by the test's name without its parameters."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, state in result.tests.items():
        group, _, test = name.partition("::")
        if group == task.tests and state != "passed":
            found[test.split("[")[0]].append(result.messages.get(name, "") or f"the test is {state}")
    return found
