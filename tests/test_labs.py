"""Every lab: mistakes fail, solutions pass, and derived files are up to date."""

from __future__ import annotations

import ast
import functools
import json
from collections import Counter
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_lab, find_labs, solution_file
from labkit.labs.manifest import FOLDER_PATTERN
from labkit.suite.messages import result_lines
from labkit.suite.results import How, State
from labstaff.authoring.alternatives import ALTERNATIVES_PER_LAB, alternative_solutions, variant_text
from labstaff.authoring.mistakes import MISTAKES_PER_TASK, mistakes_of
from labstaff.authoring.record import affected_classes
from labstaff.derive.build import derive_stub, derived_files
from labstaff.derive.signatures import code_signature, handout_signatures, written_signature
from tests.suite_runs import Job, session_folder

LABS = find_labs()
QUICK = 20
"""Of the known mistakes, one in so many is not slow."""
LONG = ("lab05", "lab08", "lab10", "lab11", "lab12", "lab13", "lab14", "lab15")
"""Labs whose whole suite takes long: it too is slow."""


def stub_folder() -> Path:
    """A folder with every lab's newly derived stub, so that work in progress in labs/ does not matter."""
    folder = session_folder("stubs")
    for lab in LABS:
        (folder / lab.student_file.name).write_text(derive_stub(lab), encoding="utf-8")
    return folder


def alternatives() -> dict[str, Job]:
    """Runs of the alternative solutions at another seed, by the tasks in which they differ from the solution."""
    return {
        f"{lab.label}/{file.stem}": Job(
            lab.label, ("--alternative", str(file), "--seed", "1"), affected_classes(lab, variant_text(lab, file))
        )
        for lab in LABS
        for file in alternative_solutions(lab)
    }


STUBS = stub_folder()
UNTOUCHED = {lab.label: Job(lab.label, ("--src", str(STUBS))) for lab in LABS}
SOLVED = {lab.label: Job(lab.label, ("--solutions",)) for lab in LABS}
MISTAKES = {
    f"{lab.label}/{mistake.task}/{mistake.name}": Job(lab.label, tests=mistake.found_by, mistake=mistake)
    for lab in LABS
    for mistake in mistakes_of(lab)
}


def by_lab(function):
    """Run a test once for each lab."""
    return pytest.mark.parametrize("lab", LABS, ids=[lab.label for lab in LABS])(function)


def test_every_folder_is_a_lab():
    for tree in ("labs", "solutions"):
        strangers = [
            f.name
            for f in (ROOT / tree).iterdir()
            if not f.name.startswith((".", "__")) and not FOLDER_PATTERN.fullmatch(f.name)
        ]
        assert not strangers, f"{tree}/ holds {strangers}, which no check of labs would see"
    names = {lab.folder.name for lab in LABS}
    assert names == {f.name for f in (ROOT / "solutions").glob("lab*")}, "labs/ and solutions/ hold different labs"
    assert names, "there is no lab"


def test_untouched_stub_fails_every_test(job, suite_runs):
    run = suite_runs(job)
    assert run.ended.how is How.FINISHED, run.ended
    assert len(run.results) == run.n_collected > 0
    others = [f"{v.test}: {v.state}" for v in run.results if v.state is not State.NOT_STARTED]
    assert not others, f"these tests do not stop at the stub: {others}"


def test_right_code_passes(job, suite_runs):
    run = suite_runs(job)
    assert run.ended.how is How.FINISHED, run.ended
    assert len(run.results) == run.n_collected > 0
    failed = ["\n".join((f"{v.test}: {v.state}", *result_lines(v))) for v in run.results if not v.passed]
    assert not failed, "\n".join(failed)
    if not job.tests:  # what is fixed in a suite can be read there and written down: see `task_share`
        fixed = {result.task for result in run.results} - {result.task for result in run.results if result.drawn}
        assert not fixed, f"no test of {', '.join(fixed)} draws its inputs at random"


def pytest_generate_tests(metafunc):
    """What takes long is slow.

    In sandboxes run the alternative solutions, the mistakes that only the kernel stops, and one stub, since a test that
    stops at a stub crosses the sandbox alike in each lab.
    """
    sandboxed = metafunc.config.option.sandboxed
    if metafunc.definition.originalname == "test_untouched_stub_fails_every_test":
        jobs = {LONG[0]: UNTOUCHED[LONG[0]]} if sandboxed else UNTOUCHED
        quick = list(jobs)
    elif metafunc.definition.originalname == "test_mistake_is_found":
        quick = list(MISTAKES)[::QUICK]
        jobs = {name: job for name, job in MISTAKES.items() if is_limited(job)} if sandboxed else MISTAKES
    elif metafunc.definition.originalname == "test_right_code_passes":
        jobs = SOLVED | alternatives() if sandboxed else SOLVED
        quick = [name for name in jobs if name not in LONG]
    else:
        return
    slow = () if sandboxed else set(jobs) - set(quick)
    marks = dict.fromkeys(slow, pytest.mark.slow)
    metafunc.parametrize("job", [pytest.param(job, marks=marks.get(name, ()), id=name) for name, job in jobs.items()])


def is_limited(job: Job) -> bool:
    """Whether what finds a mistake is a limit of memory: of the kernel's in a sandbox, of the meters' elsewhere."""
    return not memory_limited(find_lab(job.lab).suite_file).isdisjoint(job.tests)


@functools.cache
def memory_limited(suite: Path) -> set[str]:
    """The tests of a suite marked `memory_limit`, as `TestClass::test_name`."""
    body = ast.parse(suite.read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    return {
        f"{name}::{test.name}"
        for name, each in classes.items()
        for part in (each, *(classes[base.id] for base in each.bases if isinstance(base, ast.Name)))
        for test in part.body
        if isinstance(test, ast.FunctionDef)
        and any("pytest.mark.memory_limit" in ast.unparse(mark) for mark in test.decorator_list)
    }


def test_mistake_is_found(job, suite_runs):
    run, mistake = suite_runs(job), job.mistake
    assert run.ended.how is How.FINISHED, run.ended
    failed = [result for result in run.results if not result.passed]
    assert failed, f"{', '.join(mistake.found_by)} let pass: {mistake.what}"
    states = {result.state for result in failed}
    assert states <= {State.WRONG, State.CRASHED, State.TOO_SLOW}, f"the module does not run: {failed[0].failure}"
    said = "\n".join(line for result in failed for line in result_lines(result))
    assert mistake.says in said, f"no message says {mistake.says!r}; they say:\n{said}"


@by_lab
def test_answers_are_enough(lab):
    assert len(alternative_solutions(lab)) >= ALTERNATIVES_PER_LAB
    count = Counter(mistake.task for mistake in mistakes_of(lab))
    least = 1 if lab.draft else MISTAKES_PER_TASK
    few = {task.name: count[task.name] for task in lab.tasks if count[task.name] < least}
    assert not few, f"fewer than {least} mistakes: {few}"


@by_lab
def test_handout_names_the_tasks_about_memory(lab):
    text = " ".join((lab.folder / "README.md").read_text(encoding="utf-8").split())
    names = [f"`{task.name}`" for task in lab.tasks if task.memory_share == 0.25]
    others = [task.name for task in lab.tasks if task.memory_share not in (0.25, 0.75)]
    assert not others, f"the handout's sentence says a quarter: {others}"
    about = "earns at most a quarter while it needs more than it may: "
    who = text.partition(about)[2].partition(". ")[0].rstrip(".")
    assert who.replace(" and ", ", ").split(", ") == (names or [""])


@by_lab
def test_every_test_belongs_to_a_task(lab):
    tree = ast.parse(lab.suite_file.read_text(encoding="utf-8"))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    loose = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    assert not loose, f"tests outside of a task's class: {loose}"
    assert sorted(classes) == sorted(task.tests for task in lab.tasks)
    assert {file.name for file in lab.suite_files} <= {lab.suite_file.name, *COMPARE, "probes.py"}


COMPARE = ("support.py", "reference.py", "mistakes.py")
"""The modules next to a suite that a probe may not name: they hold what is compared with."""
MAY_CROSS = (
    *("labkit.simulated_memory", "labkit.meters", "labkit.ranks.", "labkit.serving.records"),
    "labkit.testing.probes",
)


@by_lab
def test_probes_compare_nothing(lab):
    """Probes run in the submission's process, so a submission could read what they name."""
    body = ast.parse(lab.suite_file.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    probes = [node for node in functions if [getattr(each, "id", "") for each in node.decorator_list] == ["probe"]]
    nodes = [node for each in probes for node in ast.walk(each)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)} - {n.arg for n in nodes if isinstance(n, ast.arg)}
    assert not [node.lineno for node in nodes if isinstance(node, ast.Assert)], "a probe asserts something"
    others = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)} - {p.name for p in probes}
    assert not named & others, "a probe names what is no probe"
    imports = [node for node in [*body, *nodes] if isinstance(node, ast.ImportFrom) and node.module]
    known = {name.asname or name.name: node.module for node in imports for name in node.names}
    course = {known[name] for name in named & known.keys() if known[name].startswith("labkit")}
    assert all(module.startswith(MAY_CROSS) for module in course), course
    imported = {known[name] for name in named & known.keys()}
    assert not imported & {Path(name).stem for name in COMPARE}, "a probe names what may compare"


@by_lab
def test_probes_name_nothing_else(lab):
    """All of `probes.py` may be sent to the submission's process."""
    file = lab.suite_file.with_name("probes.py")
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8")))) if file in lab.suite_files else []
    assert not [node.lineno for node in nodes if isinstance(node, ast.Assert)], "a probe asserts something"
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    course = {node.module or "." for node in imported if node.level or (node.module or "").startswith("labkit")}
    assert all(module.startswith(MAY_CROSS) for module in course), course


@by_lab
def test_derived_files_are_fresh(lab):
    for path, text in derived_files(lab):
        assert path.exists(), f"{path.name} is missing: uv run lab build {lab.number}"
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.relative_to(ROOT)} is not what solutions/ gives: uv run lab build {lab.number}\n"
            "If you are working on the lab in this clone, that is as it should be, and `git stash` shows a green suite."
        )
    assert (lab.folder / "report.ipynb").exists(), "the lab has no report"


@by_lab
def test_stub_differs_from_the_solution(lab):
    solution = solution_file(lab)
    stub, solved = ast.parse(derive_stub(lab)), ast.parse(solution.read_text(encoding="utf-8"))
    for task in lab.tasks:
        bodies = [next(n for n in tree.body if getattr(n, "name", "") == task.name) for tree in (stub, solved)]
        assert ast.dump(bodies[0]) != ast.dump(bodies[1]), f"the stub gives {task.name} away"


@by_lab
def test_signatures_agree(lab):
    declared = {task.name: written_signature(task.signature) for task in lab.tasks}
    sources = {"the stub": derive_stub(lab), "the solution": solution_file(lab).read_text(encoding="utf-8")}
    for where, source in sources.items():
        for signature in declared.values():
            assert code_signature(source, signature) == signature, f"{where} and lab.toml disagree"
    handout = handout_signatures((lab.folder / "README.md").read_text(encoding="utf-8"))
    assert handout == list(declared.values()), "README.md and lab.toml disagree"


@by_lab
def test_titles_agree(lab):
    title = f"# Lab {lab.number}: {lab.title}"
    report = json.loads((lab.folder / "report.ipynb").read_text(encoding="utf-8"))
    for text in ((lab.folder / "README.md").read_text(encoding="utf-8"), "".join(report["cells"][0]["source"])):
        assert text.splitlines()[0] == title


@by_lab
def test_reading_is_there(lab):
    missing = [path for path in lab.read if not (ROOT / path).is_file()]
    assert not missing
    numbers = [other.label for other in LABS]
    assert set(lab.requires) <= set(numbers)
