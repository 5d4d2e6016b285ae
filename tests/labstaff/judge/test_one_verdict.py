"""One verdict everywhere: an answer has the same states, points and words in whichever way it is judged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from labkit.labs.manifest import Lab
from labkit.suite.apart import run_apart, to_the_end
from labkit.suite.prefork import WarmRunner
from labkit.suite.results import task_points
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import State, Verdict
from labstaff.course.grade import grade
from labstaff.grading.told import MOST_TOLD
from labstaff.judge.judging import kept_at
from labstaff.judge.kept import FILE
from labstaff.judge.results import JudgedSubmission, load
from labstaff.judge.submission import read_submission
from tests.labstaff.judge.pytest_in_forks import Pytest
from tests.labstaff.judge.twenty import BESIDE, BESIDE_TESTS, OTHER, TEST_SECONDS, TESTS, TWENTY, WHOLE, Answer
from tests.student import LAB

pytestmark = pytest.mark.slow

SEED = 0
"""Of the random inputs, in each mode: a student's runs have this one."""

ENDS_WITH_THE_ANSWER = ("pytest",)
"""Modes in which an answer that ends its process ends the run."""

STUDENTS = {answer.name: f"s{number:02d}" for number, answer in enumerate(TWENTY)}


@dataclass(frozen=True)
class Outcome:
    """What an answer got: by test its state and what it was told, by task the points."""

    tests: dict[str, tuple[State, tuple[str, ...]]]
    points: dict[str, float]


def outcome(verdicts: Iterable[Verdict], lab: Lab = LAB, wanted: Iterable[str] = WHOLE) -> Outcome:
    """The verdicts of all tests of the tasks `wanted`."""
    verdicts = [verdict for verdict in verdicts if verdict.task in wanted]
    return Outcome(
        {f"{verdict.task}::{verdict.test}": (verdict.state, verdict.lines) for verdict in verdicts},
        {
            task.name: task_points(task, [verdict for verdict in verdicts if verdict.task == task.name])
            for task in lab.tasks
            if task.name in wanted
        },
    )


def of_both(verdicts: list[Verdict]) -> tuple[Outcome, Outcome]:
    """The outcomes of this lab and of the one beside it."""
    return outcome(verdicts), of_other(verdicts)


def of_other(verdicts: list[Verdict]) -> Outcome:
    """The outcome of the lab beside this one."""
    return outcome(verdicts, OTHER, BESIDE_TESTS)


def asked_for(*options: str) -> list[str]:
    """pytest's arguments for both labs, this one first."""
    tests = [f"{LAB.suite_file}::{name}" for name in TESTS]
    return [*options, "-p", "no:cacheprovider", *tests, *(f"{OTHER.suite_file}::{n}" for n in BESIDE_TESTS.values())]


def by_pytest(run: Pytest, folder: Path) -> tuple[Outcome, Outcome]:
    """`uv run pytest`, on this lab and another one beside it."""
    return of_both(run(folder / "plain.json", asked_for("--src", str(folder))))


def by_pytest_in_a_box(run: Pytest, folder: Path) -> tuple[Outcome, Outcome]:
    """`uv run pytest --sandboxed`, on both labs."""
    return of_both(run(folder / "boxed.json", asked_for("--src", str(folder), "--sandboxed")))


def by_check(folder: Path) -> Outcome:
    """`lab check` and a report's cells."""
    return outcome(run_apart(LAB, "--src", str(folder), tests=TESTS).verdicts)


def by_watch(runner: WarmRunner, folder: Path) -> Outcome:
    """`lab watch`."""

    def once(more: Sequence[str], _: object) -> SuiteRun:
        return runner.run(LAB.label, "--src", str(folder), *more, tests=TESTS)

    return outcome(to_the_end(once).verdicts)


def by_sandbox(runner: WarmRunner, folder: Path) -> Outcome:
    """`--sandboxed`, which is how the judge runs a suite."""
    return outcome(runner.run(LAB.label, "--src", str(folder), "--sandboxed", tests=TESTS).verdicts)


def of_other_alone(runner: WarmRunner, folder: Path) -> Outcome:
    """The other lab by itself, sandboxed."""
    options = ("--src", str(folder), "--sandboxed")
    return of_other(runner.run(OTHER.label, *options, tests=tuple(BESIDE_TESTS.values())).verdicts)


@dataclass(frozen=True)
class Graded:
    """What `lab grade` made of all answers in one batch, by student: results, and what nbgrader has of them."""

    judged: dict[str, JudgedSubmission]
    scores: dict[str, dict[str, float]]
    comments: dict[str, dict[str, str]]


def graded(course: Path) -> Graded:
    """Hand all answers in, grade them, and read what came of it."""
    for answer in TWENTY:
        place = course / "submitted" / STUDENTS[answer.name] / LAB.folder.name
        shutil.copytree(course / "release" / LAB.folder.name, place)
        (place / "src" / f"{LAB.module}.py").write_bytes(answer.source)
    (course / FILE).write_text(json.dumps({"seed": SEED}), encoding="utf-8")
    said: list[str] = []
    assert grade(course / "submitted", [LAB], say=said.append) == 0, said
    assert f"gradebook.db: {len(TWENTY)} recorded, 0 passed over (recorded before, unchanged)" in said, said
    judged, comments = {}, {}
    for student in STUDENTS.values():
        submission = read_submission(LAB, course / "submitted" / student / LAB.folder.name)
        result = load(kept_at(course / "judged", submission, SEED))
        assert result is not None, student
        judged[student] = result
        notebook = course / "autograded" / student / LAB.folder.name / "report.ipynb"
        comments[student] = dict(_told_in_cells(json.loads(notebook.read_text(encoding="utf-8"))))
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        found = {each: book.find_submission_notebook("report", LAB.folder.name, each) for each in STUDENTS.values()}
        scores = {each: {grade.name: grade.score for grade in notebook.grades} for each, notebook in found.items()}
    return Graded(judged, scores, comments)


def _told_in_cells(notebook: dict) -> Iterable[tuple[str, str]]:
    """By task, what its check cell says to the student and to the grader."""
    for cell in notebook["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id")
        if name in WHOLE:
            yield name, "".join(line for output in cell["outputs"] for line in output.get("text", ""))


@dataclass(frozen=True)
class Judged:
    """All answers in all modes."""

    by_mode: dict[tuple[str, str], Outcome]
    both: dict[tuple[str, str], tuple[Outcome, Outcome]]
    other_alone: dict[bytes, Outcome]
    graded: Graded


@pytest.fixture(scope="module")
def judged(made_course, tmp_path_factory):
    """Every answer's outcome by mode, each mode with one warm process for all of them."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setenv("ATTENTION_LABS_TEST_SECONDS", TEST_SECONDS)
        course = shutil.copytree(made_course, tmp_path_factory.mktemp("twenty") / "course")
        in_course = pool.submit(graded, course)
        with (
            WarmRunner() as runner,
            WarmRunner(prepare="labstaff.judge.sandbox:keep_boxed") as boxed,
            Pytest() as run_pytest,
        ):
            modes: dict[str, Callable[[Path], Outcome]] = {
                "check": by_check,
                "watch": lambda folder: by_watch(runner, folder),
                "sandboxed": lambda folder: by_sandbox(boxed, folder),
            }
            modes_of_both: dict[str, Callable[[Path], tuple[Outcome, Outcome]]] = {
                "pytest": lambda folder: by_pytest(run_pytest, folder),
                "two labs, sandboxed": lambda folder: by_pytest_in_a_box(run_pytest, folder),
            }
            asked, asked_of_both, asked_alone = {}, {}, {}
            for answer in TWENTY:
                folder = tmp_path_factory.mktemp("answer")
                beside = BESIDE.get(answer.name, BESIDE[""])
                (folder / f"{LAB.module}.py").write_bytes(answer.source)
                (folder / f"{OTHER.module}.py").write_bytes(beside)
                for mode, judge in modes.items():
                    asked[answer.name, mode] = pool.submit(judge, folder)
                for mode, judge_both in modes_of_both.items():
                    asked_of_both[answer.name, mode] = pool.submit(judge_both, folder)
                if beside not in asked_alone:
                    asked_alone[beside] = pool.submit(of_other_alone, boxed, folder)
            return Judged(
                {key: future.result() for key, future in asked.items()},
                {key: future.result() for key, future in asked_of_both.items()},
                {key: future.result() for key, future in asked_alone.items()},
                in_course.result(),
            )


@pytest.fixture(params=TWENTY, ids=[answer.name for answer in TWENTY])
def answer(request) -> Answer:
    return request.param


def same(got: Outcome, expected: Outcome) -> None:
    """Points, states, words, and which tests there are."""
    assert got.points == expected.points
    differ = {test: (got.tests.get(test), told) for test, told in expected.tests.items() if got.tests.get(test) != told}
    assert not differ
    assert got.tests.keys() == expected.tests.keys()


def test_a_student_sees_what_the_answer_is_worth(judged, answer):
    expected = judged.by_mode[answer.name, "check"]
    assert {state for state, _ in expected.tests.values()} - {State.PASSED} == answer.states
    assert {task for task, points in expected.points.items() if points < WHOLE[task]} == answer.lost
    assert answer.says in "\n".join(line for _, lines in expected.tests.values() for line in lines)


@pytest.mark.parametrize("mode", ["pytest", "watch", "sandboxed", "two labs, sandboxed"])
def test_one_verdict(judged, answer, mode):
    both = judged.both.get((answer.name, mode))
    got = both[0] if both else judged.by_mode[answer.name, mode]
    if mode in ENDS_WITH_THE_ANSWER and answer.name == "crashes":
        assert not got.tests, "what was known is kept"
        return
    same(got, judged.by_mode[answer.name, "check"])


def test_neither_of_two_labs_in_a_box_knows_of_the_other(judged, answer):
    _, other = judged.both[answer.name, "two labs, sandboxed"]
    alone = judged.other_alone[BESIDE.get(answer.name, BESIDE[""])]
    assert State.PASSED in {state for state, _ in alone.tests.values()}
    assert len({state for state, _ in alone.tests.values()}) > 1, "it has something to say"
    same(other, alone)


def test_lab_grade_keeps_the_same(judged, answer):
    expected = judged.by_mode[answer.name, "check"]
    result = judged.graded.judged[STUDENTS[answer.name]]
    assert {task: points for task, points in result.tasks.items() if task in WHOLE} == expected.points
    classes = {task.tests: task.name for task in LAB.tasks if task.name in WHOLE}
    named = {name: f"{classes.get(name.split('::')[0])}::{name.split('::')[1]}" for name in result.tests}
    states = {named[name]: state for name, state in result.tests.items() if not named[name].startswith("None")}
    assert states == {
        name: "passed" if state is State.PASSED else "failed" for name, (state, _) in expected.tests.items()
    }
    messages = {named[name]: text for name, text in result.messages.items() if not named[name].startswith("None")}
    assert messages == {
        name: "\n".join(lines) for name, (state, lines) in expected.tests.items() if state is not State.PASSED
    }


def test_the_gradebook_holds_the_same(judged, answer):
    expected = judged.by_mode[answer.name, "check"]
    scores = judged.graded.scores[STUDENTS[answer.name]]
    comments = judged.graded.comments[STUDENTS[answer.name]]
    for task, points in expected.points.items():
        tests = {name: told for name, told in expected.tests.items() if name.split("::")[0] == task}
        n_passed = sum(state is State.PASSED for state, _ in tests.values())
        assert scores[task] == round(points, 2)
        first, counted, *told = comments[task].splitlines()
        assert first == f"{LAB.label} · {task} · {round(points, 2):g} of {WHOLE[task]:g} points"
        assert counted == f"{n_passed} of {len(tests)} tests pass"
        said = [lines for state, lines in tests.values() if state is not State.PASSED]
        wanted = [line for lines in list(dict.fromkeys(said))[:MOST_TOLD] for line in lines]
        assert [line.removeprefix("    ") for line in told if line.startswith("    ")] == wanted
