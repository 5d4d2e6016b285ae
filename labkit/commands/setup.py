"""`lab setup`: has git overlook what uv adds to uv.lock, and says when that would be worth it."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETTING = "filter.lockfile.clean"
FILTER = "python3 labkit/commands/lockfile.py"


def set_up(house: Path) -> str:
    """Have the clone that `house` is clean uv.lock before git sees it; returns what was done, as one line."""
    if not (house / ".git").exists():
        return "lab setup: this folder is no git clone, and needs no set-up"
    done = _git(house, "config", SETTING, FILTER)
    if done.returncode:
        return f"lab setup: {done.stderr.strip()}"
    if _git(house, "diff", "--quiet", "--", "uv.lock").returncode == 0:  # what is left differs in size only
        _git(house, "add", "--", "uv.lock")
    return f"lab setup: git now overlooks what uv adds to uv.lock here; `git config --unset {SETTING}` undoes it"


def setup_line(house: Path) -> str:
    """What to tell somebody to whom git shows uv.lock as changed though nobody changed it; nothing otherwise."""
    if not (house / ".git").exists() or _git(house, "config", SETTING).returncode == 0:
        return ""
    changed = _git(house, "diff", "--quiet", "--", "uv.lock").returncode == 1
    return "git shows uv.lock as changed, since uv has completed it: uv run lab setup ends that" if changed else ""


def _git(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(house), *arguments], capture_output=True, text=True)
    except OSError as error:
        return subprocess.CompletedProcess(arguments, 127, "", str(error))
