"""A git clean filter for uv.lock: keeps names, versions, dependencies and markers, and no address.

uv completes such a file the first time it reads it, and keeps the versions. Reads standard input, writes standard
output; any Python runs it, without the project's environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SETTING = "filter.lockfile.clean"
FILTER = "python3 labkit/commands/lockfile.py"
ADDRESS = re.compile(r'registry = "[^"]*"')


def clean(lock: str) -> str:
    """The lock file's text without files, hashes, addresses and package metadata."""
    kept: list[str] = []
    skipping_list = skipping_table = False
    for line in lock.splitlines():
        if line.startswith("["):
            skipping_table = line.startswith("[package.metadata")
        if skipping_table:
            continue
        if skipping_list:
            skipping_list = line != "]"
            continue
        if line.startswith("wheels = ["):
            skipping_list = not line.endswith("]")
            continue
        if line.startswith("sdist = "):
            continue
        kept.append(ADDRESS.sub('registry = "pypi"', line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n") + "\n"


def hide_additions(root: Path) -> None:
    """Let git in the clone at `root` ignore what uv adds to uv.lock; without git or a clone, do nothing."""
    if not (root / ".git").exists():
        return
    try:
        if _git(root, "config", SETTING):
            _git(root, "config", SETTING, FILTER)
        # uv completes the file after each change of it that git brings; git takes another size for a change
        # until it has read the file again.
        if _git(root, "diff-files", "--quiet", "--", "uv.lock") and not _git(root, "diff", "--quiet", "--", "uv.lock"):
            _git(root, "add", "--", "uv.lock")
    except OSError:
        return


def _git(root: Path, *arguments: str) -> int:
    """The exit status of a git command; what it prints is thrown away."""
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True).returncode


if __name__ == "__main__":
    sys.stdout.write(clean(sys.stdin.read()))
