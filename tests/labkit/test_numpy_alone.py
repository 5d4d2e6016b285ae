"""Labs 01, 03 and 04 in an environment without torch, made from an empty cache."""

from __future__ import annotations

import os
import subprocess

import pytest

from labkit.commands import cli
from labkit.labs.catalog import ROOT, find_lab
from labkit.suite import finder

MAX_MB = 200
UV = os.environ.get("UV", "uv")


def test_a_lab_names_the_library_that_is_missing(monkeypatch):
    monkeypatch.setattr(finder, "_installed", lambda name: "" if name == "torch" else "2.0")
    assert finder.platform_problem(find_lab("01")) is None
    assert finder.platform_problem(find_lab("04")) is None
    assert finder.platform_problem(find_lab("05")).startswith("needs torch, which is not installed: `uv sync`")


def test_a_command_names_the_library_that_is_missing(monkeypatch):
    def app(name):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("sys.argv", ["lab", "chat", "01"])
    monkeypatch.setattr("labkit.commands.app.app", lambda: app("torch.nn"))
    with pytest.raises(SystemExit, match=r"^lab chat: needs torch, which is not installed: `uv sync`"):
        cli.main()
    monkeypatch.setattr("labkit.commands.app.app", lambda: app("labkit.misspelled"))
    with pytest.raises(ModuleNotFoundError):
        cli.main()


@pytest.mark.slow
def test_three_labs_need_no_torch_and_little_room(tmp_path):
    tree, cache = tmp_path / "tree", tmp_path / "cache"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= {"UV_CACHE_DIR": str(cache)}

    def run(*command):
        options = {"cwd": tree, "env": environment, "capture_output": True, "text": True}
        return subprocess.run([UV, "run", "--no-default-groups", *command], **options)

    board = run("lab")
    assert "next: standard_attention(" in board.stdout, board.stderr
    assert "lab05, lab06" in board.stdout
    n_bytes = sum(file.stat().st_size for file in (tree / ".venv").rglob("*") if file.is_file())
    assert n_bytes <= MAX_MB * 10**6, n_bytes
    assert "standard_attention · not implemented yet" in run("lab", "check", "01").stdout
    suites = [f"labs/{find_lab(number).folder.name}" for number in ("01", "03", "04")]
    done = run("pytest", "-q", *suites, "--solutions")
    assert done.returncode == 0, done.stdout
    assert run("python", "-c", "import torch").returncode != 0
