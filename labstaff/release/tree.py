"""Writes the students' tree: what a student needs and nothing else, searched for leaks before it is handed over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from labkit.commands.lockfile import clean
from labkit.labs.catalog import find_labs
from labstaff.derive.build import derived_files
from labstaff.release.leaks import find_leaks

RELEASED = (
    ".devcontainer",
    ".gitattributes",
    ".gitignore",
    ".vscode",
    "LICENSE",
    "README.md",
    "docs",
    "labkit",
    "labs",
    "pyproject.toml",
    "uv.lock",
)
INSTRUMENTS = ("labkit/meters/", "labkit/bench/")
"""What grades Lab 02 does what its answers do. Students may read it; a submission that imports it is a finding."""
KEPT_BACK = ("docs/figures/make/",)
REGION = re.compile(
    r"^[ \t]*(?:#|<!--) instructors: begin(?: -->)?[ \t]*\n.*?^[ \t]*(?:#|<!--) instructors: end(?: -->)?[ \t]*\n",
    re.MULTILINE | re.DOTALL,
)
FOR_THE_SANDBOX = ("capAdd", "securityOpt")
"""What a container may do so that submissions can be judged in it: nothing that a student's needs."""


def without_powers(text: str) -> str:
    """A devcontainer.json, `text`, for a container like any other."""
    settings = {key: value for key, value in json.loads(text).items() if key not in FOR_THE_SANDBOX}
    return json.dumps(settings, indent=2) + "\n"


CHANGED: dict[str, Callable[[str], str]] = {
    ".devcontainer/Dockerfile": partial(REGION.sub, ""),
    ".devcontainer/devcontainer.json": without_powers,
    "README.md": partial(REGION.sub, ""),
    "pyproject.toml": partial(REGION.sub, ""),
    "uv.lock": clean,
}
FIGURE_SCRIPT = re.compile(r"\[([^\]]+)\]\(figures/make/[^)\s]+\)")
"""A page's link to the script of a figure: the scripts stay here, since they draw with the course's own tools."""


class ReleaseError(RuntimeError):
    """Why nothing was released; the folder is gone again."""


def release(house: Path, out: Path) -> list[Path]:
    """Write the students' tree to `out`, which must not exist; returns the files, relative to it.

    Stubs and reports are derived afresh, whatever stands in the working copy. Regions of README.md, pyproject.toml
    and the container's Dockerfile between `instructors: begin` and `instructors: end` are left out.

    Raises:
        ReleaseError: `out` exists, or a passage of a solution was found in the result.
    """
    if out.exists():
        raise ReleaseError(f"{out} exists already: name a folder that does not")
    labs = [lab for lab in find_labs(house) if not lab.draft]
    drafts = [f"labs/{lab.folder.name}/" for lab in find_labs(house) if lab.draft]
    derived = {path.relative_to(house): text for lab in labs for path, text in derived_files(lab)}
    try:
        chosen = _chosen(house, set(derived), (*KEPT_BACK, *drafts))
        written = [_write(house, out, file, derived.get(file), drafts) for file in chosen]
        searched = [out / file for file in written if not str(file).startswith(INSTRUMENTS)]
        if leaks := find_leaks(labs, searched):
            told = "\n".join(f"  {leak.file.relative_to(out)}: {leak.passage}" for leak in leaks[:10])
            raise ReleaseError(f"{len(leaks)} passages of solutions would be released; nothing was\n{told}")
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return written


def _chosen(house: Path, derived: set[Path], kept_back: tuple[str, ...]) -> list[Path]:
    """What git tracks or would track of the released folders, and every derived file."""
    command = ["git", "-C", str(house), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *RELEASED]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    files = {Path(name) for name in found if name and not name.startswith(kept_back) and (house / name).is_file()}
    return sorted(files | derived)


def _write(house: Path, out: Path, file: Path, text: str | None, drafts: list[str]) -> Path:
    target = out / file
    target.parent.mkdir(parents=True, exist_ok=True)
    if text is None and (change := CHANGED.get(str(file))):
        text = change((house / file).read_text(encoding="utf-8"))
    if file.suffix == ".md":
        page = FIGURE_SCRIPT.sub(r"\1", text or (house / file).read_text(encoding="utf-8"))
        text = "".join(line for line in page.splitlines(True) if not any(draft in line for draft in drafts))
    if text is None:
        shutil.copyfile(house / file, target)
    else:
        target.write_text(text, encoding="utf-8")
    return file
