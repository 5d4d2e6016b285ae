"""The committed lock file has versions and no download addresses."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib

from labkit.labs.catalog import ROOT

COMPLETED = """version = 1

[[package]]
name = "one"
version = "1.0"
source = { registry = "PLACE/simple" }
dependencies = [
    { name = "two", marker = "sys_platform == 'win32'" },
]
sdist = { url = "PLACE/one.tar.gz", hash = "sha256:00", size = 1 }
wheels = [
    { url = "PLACE/one.whl", hash = "sha256:00", size = 1 },
]

[package.optional-dependencies]
more = [
    { name = "two" },
]

[package.metadata]
requires-dist = [{ name = "two" }]

[[package]]
name = "two"
version = "2.0"
source = { registry = "PLACE/simple" }
""".replace("PLACE", "https:" + "//example.org")


def clean(text: str) -> str:
    """The filter's output for `text`, run as git runs it: by any Python, without the project's environment."""
    command = [sys.executable, str(ROOT / "labkit/commands/lockfile.py")]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_filter_keeps_names_versions_dependencies_and_markers():
    once = clean(COMPLETED)
    assert tomllib.loads(once) == {
        "version": 1,
        "package": [
            {
                "name": "one",
                "version": "1.0",
                "source": {"registry": "pypi"},
                "dependencies": [{"name": "two", "marker": "sys_platform == 'win32'"}],
                "optional-dependencies": {"more": [{"name": "two"}]},
            },
            {"name": "two", "version": "2.0", "source": {"registry": "pypi"}},
        ],
    }
    assert clean(once) == once


def test_committed_lock_has_no_address():
    command = ["git", "-C", str(ROOT), "show", "HEAD:uv.lock"]
    committed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "://" not in committed, "run the two git commands of CONTRIBUTING.md in this clone, and commit uv.lock again"
    assert clean(committed) == committed


def test_git_shows_no_change_after_uv_has_completed_the_file(tmp_path):
    """With the commands of CONTRIBUTING.md, and no sooner: what git does in a clone is the user's choice."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    documented = re.findall(r"^git (?:config filter|add uv).*$", contributing, re.MULTILINE)
    assert len(documented) == 2

    def git(*arguments):
        return subprocess.run(["git", "-C", tmp_path, *arguments], capture_output=True, text=True, check=True).stdout

    lock = tmp_path / "uv.lock"
    lock.write_text(clean(COMPLETED), encoding="utf-8")
    (tmp_path / "labkit/commands").mkdir(parents=True)
    for name in (".gitattributes", "labkit/commands/lockfile.py"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    git("init", "--quiet")
    git("add", ".")
    lock.write_text(COMPLETED, encoding="utf-8")
    assert "uv.lock" in git("diff")

    for command in documented:
        git(*shlex.split(command, comments=True)[1:])
    assert not git("diff-files")
    lock.write_text(COMPLETED.replace("2.0", "2.1"), encoding="utf-8")
    changes = git("diff")
    assert "uv.lock" in changes, "another version is a change"
    assert "https" not in changes
