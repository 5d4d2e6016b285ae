"""The students' tree: complete without labstaff, and without any solution text."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from labkit.labs.catalog import ROOT, find_lab, find_labs
from labkit.review.versions import DATA_FILE, NoVersions, stored_versions
from labkit.suite.results import TaskResult, store
from labstaff.release.leaks import find_leaks, secret_passages
from labstaff.release.tree import INSTRUMENTS, RULES, Assistants, ReleaseError, Reviews, release
from labstaff.review.versions import versions_of
from labstaff.site import build_site
from tests.student import quiet_environment

pytestmark = pytest.mark.slow

LABS = [lab for lab in find_labs() if not lab.draft]
CHOSEN = [find_lab(number) for number in ("03", "05")]
HUGE = 1_500_000


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A released tree in a fresh folder."""
    out = tmp_path_factory.mktemp("released") / "course"
    release(ROOT, out)
    return out


@pytest.fixture(scope="module")
def released_in_part(tmp_path_factory):
    """The tree of a course of two labs."""
    out = tmp_path_factory.mktemp("part") / "course"
    release(ROOT, out, CHOSEN)
    return out


@pytest.fixture(params=["released", "released_in_part"])
def tree(request):
    """Either tree."""
    return request.getfixturevalue(request.param)


def run(released: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the released tree from inside it, with the tree's own labkit."""
    environment = {**quiet_environment(), "PYTHONPATH": str(released)}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=released, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_rules_for_assistants_are_those_that_were_chosen(released, tmp_path):
    assert (released / "AGENTS.md").read_text() == (RULES / "tutor.md").read_text()
    for chosen in (Assistants.OPEN, Assistants.NONE):
        release(ROOT, tmp_path / chosen, CHOSEN, chosen)
        file, rules = tmp_path / chosen / "AGENTS.md", RULES / f"{chosen}.md"
        assert (file.read_text() if file.exists() else "") == (rules.read_text() if rules.exists() else "")


def test_versions_of_reviews_are_closed_until_the_tasks_are_done(released, tmp_path):
    lab = find_lab("03", released)
    assert {file.parent.name for file in released.rglob(DATA_FILE)} == {each.folder.name for each in LABS}
    with pytest.raises(NoVersions, match="safe_softmax"):
        stored_versions(lab)
    store(lab, {task.name: TaskResult(task.name, 1, 1, True) for task in lab.tasks})
    try:
        assert stored_versions(lab) == versions_of(find_lab("03"))
    finally:
        shutil.rmtree(released / ".lab")
    release(ROOT, tmp_path / "none", CHOSEN[:1], reviews=Reviews.NONE)
    assert not list((tmp_path / "none").rglob(DATA_FILE))


def test_the_rules_name_commands_that_exist():
    from labkit.commands.app import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    for file in RULES.glob("*.md"):
        found = set(re.findall(r"uv run lab (\w+)", file.read_text()))
        assert found and found <= names, file.name


def test_nothing_of_the_instructors(released):
    for absent in ("solutions", "tests", "labstaff", ".ci", ".gitattributes", "labkit/commands/lockfile.py"):
        assert not (released / absent).exists(), absent
    for text in ("pyproject.toml", "README.md"):
        content = (released / text).read_text(encoding="utf-8")
        assert "instructors:" not in content
        assert "nbgrader" not in content
    names = {path.name for path in released.rglob("*")}
    assert not names & {"__pycache__", ".git", ".venv", ".lab", "report.py", "alternatives", "mistakes"}
    assert not [path for path in released.rglob("*") if path.is_file() and path.stat().st_size > HUGE]


def test_everything_a_student_needs(released):
    for lab in LABS:
        folder = released / "labs" / lab.folder.name
        for file in ("README.md", "lab.toml", f"src/{lab.module}.py", f"tests/test_{lab.module}.py", "report.ipynb"):
            assert (folder / file).is_file(), file
        for path in lab.read:
            assert (released / path).is_file()
    for file in ("README.md", "pyproject.toml", "LICENSE", ".gitignore"):
        assert (released / file).is_file()


def test_the_first_command_in_a_clone_changes_nothing(released, tmp_path):
    """uv writes a lock file of its own, which git ignores; its versions are those of the repository's."""
    git = ["git", f"--git-dir={tmp_path}/.git", f"--work-tree={released}"]
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run([*git, "check-ignore", "--quiet", "uv.lock"], cwd=released, check=True)
    assert not (released / "uv.lock").exists()
    text = (released / "pyproject.toml").read_text(encoding="utf-8")
    settings, lock = tomllib.loads(text), tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    locked = {f"{each['name']}=={each['version']}" for each in lock["package"]}
    pins = {pin.partition(" ")[0] for pin in settings["tool"]["uv"]["constraint-dependencies"]}
    assert pins < locked
    groups = settings["dependency-groups"].values()
    needed = {re.match(r"[\w-]+", each)[0] for each in [*settings["project"]["dependencies"], *chain(*groups)]}
    assert needed < {pin.partition("==")[0] for pin in pins}
    assert "://" not in text


def test_an_editor_and_a_container_find_their_settings(released):
    """The container has neither the instructor's tools nor the capabilities that grading needs."""
    assert (released / ".vscode" / "settings.json").is_file()
    ours, theirs = (json.loads((tree / ".devcontainer/devcontainer.json").read_text()) for tree in (ROOT, released))
    assert ours.keys() - theirs.keys() == {"capAdd", "securityOpt"}
    dockerfile = (released / ".devcontainer" / "Dockerfile").read_text(encoding="utf-8")
    assert "uv" in dockerfile
    assert "bubblewrap" not in dockerfile + json.dumps(theirs)
    assert "chromium" not in dockerfile
    assert "instructors:" not in dockerfile


def test_links_of_the_documents_lead_somewhere(tree):
    gone = []
    for page in tree.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\(([^)\s#]+)", text)
        local = [target for target in targets if not re.match(r"[a-z]+:", target)]
        gone += [f"{page.relative_to(tree)}: {target}" for target in local if not (page.parent / target).exists()]
    assert gone == []
    assert (tree / "docs" / "README.md").is_file()


def test_nothing_is_for_instructors_alone(tree, tmp_path):
    """The guide and the syllabi for instructors are neither in the tree nor on the site, nor mentioned there."""
    for page in tree.rglob("*.md"):
        assert page.name not in ("instructors.md", "syllabi.md")
        assert not re.search(r"(instructors|syllabi)\.md", page.read_text(encoding="utf-8")), page
    build_site(tree, tmp_path / "site")
    build_site(ROOT, tmp_path / "site of the repository")
    for html in tmp_path.rglob("*.html"):
        assert html.name not in ("instructors.html", "syllabi.html")
        assert not re.search(r"(instructors|syllabi)\.html", html.read_text(encoding="utf-8")), html


def test_a_course_of_some_labs(released_in_part):
    """Its board, README and course map show these labs; the other chapters stay and link to no lab."""
    names = [lab.folder.name for lab in CHOSEN]
    assert sorted(path.name for path in (released_in_part / "labs").iterdir()) == names
    board = run(released_in_part, "labkit.commands.cli").stdout
    assert [line.split()[0] for line in board.splitlines() if line[:2].isdigit()] == ["03", "05"]
    course_map = (released_in_part / "docs" / "course_map.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\[(\d\d) ", course_map)) == {"03", "05"}
    assert "Lab 04" not in course_map
    assert not list(released_in_part.glob("docs/figures/00_course_map.*"))
    readme = (released_in_part / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"lab (?:check|hint|watch|review|submit|chat|ring|trace) (\d\d)", readme)) == {"03"}
    assert f"labs/{names[0]}/src/{CHOSEN[0].module}.py" in readme
    chapter = (released_in_part / "docs" / "04_tiling_and_blocking.md").read_text(encoding="utf-8")
    assert "In Lab 04 (not in this course) you write" in chapter
    done = run(released_in_part, "pytest", "-p", "no:cacheprovider")
    assert "lab05 · flash_forward · not implemented yet" in done.stdout
    gone = run(released_in_part, "labkit.commands.cli", "check", "04")
    assert gone.stderr.strip().startswith("lab: there is no lab '04'; there are: 03 (")


def test_the_whole_tree_is_unchanged_by_the_choice(released):
    for name in ("docs/course_map.md", "docs/04_tiling_and_blocking.md"):
        text = (released / name).read_text(encoding="utf-8")
        assert "not in this course" not in text and "all labs:" not in text
    assert "## Shorter ways" in (released / "docs/course_map.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = (released / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line not in readme.splitlines()] == []


def test_nothing_of_a_solution(released):
    files = [path for path in released.rglob("*") if path.is_file()]
    files = [path for path in files if not str(path.relative_to(released)).startswith(INSTRUMENTS)]
    assert find_leaks(LABS, files) == []
    assert sum(len(secret_passages(lab)) for lab in LABS) > 20 * len(LABS), "there is next to nothing to look for"


def test_a_passage_of_a_solution_is_found(tmp_path):
    secret = max(secret_passages(LABS[0]), key=len)
    text, notebook, output = tmp_path / "a.md", tmp_path / "b.ipynb", tmp_path / "c.ipynb"
    text.write_text(f"Try this:\n\n    {secret.replace(' ', '  ')}\n", encoding="utf-8")
    halves = [secret[: len(secret) // 2], secret[len(secret) // 2 :]]
    notebook.write_text(json.dumps({"cells": [{"source": halves}]}), encoding="utf-8")
    output.write_text(json.dumps({"cells": [{"outputs": [{"text": secret}]}]}), encoding="utf-8")
    assert {leak.file for leak in find_leaks(LABS[:1], [text, notebook, output])} == {text, notebook, output}


def test_suites_run_at_once(released):
    done = run(released, "pytest", "-p", "no:cacheprovider")
    assert done.returncode == 1, done.stdout + done.stderr
    for lab in LABS:
        for task in lab.tasks:
            assert f"{lab.label} · {task.name} · not implemented yet" in done.stdout


def test_a_solved_file_passes_there(released):
    lab = LABS[0]
    target = released / "labs" / lab.folder.name / "src" / f"{lab.module}.py"
    stub = target.read_text(encoding="utf-8")
    shutil.copyfile(ROOT / "solutions" / lab.folder.name / "src" / f"{lab.module}.py", target)
    try:
        done = run(released, "pytest", f"labs/{lab.folder.name}")
        assert done.returncode == 0, done.stdout
        assert f"{len(lab.tasks)} of {len(lab.tasks)} tasks done" in done.stdout
        board = run(released, "labkit.commands.cli")
        assert f"{len(lab.tasks)} of {len(lab.tasks)}" in board.stdout
    finally:
        target.write_text(stub, encoding="utf-8")


def test_the_students_commands(released):
    told = run(released, "labkit.commands.cli", "--help").stdout
    for command in ("check", "hint", "watch"):
        assert f"\n│ {command} " in told
    settings = tomllib.loads((released / "pyproject.toml").read_text(encoding="utf-8"))
    assert "entry-points" not in settings["project"], "instructors' commands are found by an entry point"
    assert run(released, "labkit.commands.cli", "hint", "01", "standard_attention").stdout.startswith(
        "lab01 · standard_attention · hint 1 of"
    )


def test_refuses_an_existing_folder(tmp_path):
    with pytest.raises(ReleaseError, match="exists already"):
        release(ROOT, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_draft_is_not_released(tmp_path):
    draft = msgspec.structs.replace(find_lab("15"), draft=True)
    with pytest.raises(ReleaseError, match="lab15: a draft is not released"):
        release(ROOT, tmp_path / "out", [draft])
    assert not (tmp_path / "out").exists()


def test_a_leak_stops_the_release(tmp_path, monkeypatch):
    monkeypatch.setattr("labstaff.release.leaks.secret_passages", lambda lab: {"Hands-on labs on attention's memory"})
    with pytest.raises(ReleaseError, match=r"passages of solutions would be released; nothing was\n  pyproject.toml: "):
        release(ROOT, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_install_with_pip_runs_lab_and_pytest(tmp_path):
    """The README's way without uv; libraries come from this environment, instead of PyTorch's CPU wheels."""
    bin_folder, course = tmp_path / "venv" / "bin", tmp_path / "course"
    release(ROOT, course, [find_lab("01")])
    run_command = partial(subprocess.run, cwd=course, capture_output=True, text=True, timeout=300)
    run_command([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    installed = run_command([bin_folder / "pip", "install", "--quiet", "--no-deps", "-e", "."])
    assert installed.returncode == 0, installed.stderr
    board = run_command([bin_folder / "lab"])
    assert "next: standard_attention(" in board.stdout, board.stderr
    tested = run_command([bin_folder / "python", "-m", "pytest", "labs/lab01_memory_profiling", "-x"])
    assert tested.returncode == 1
    assert "lab01 · standard_attention · not implemented yet" in tested.stdout
