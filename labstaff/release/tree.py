"""Writes the students' tree: only what a student needs, after a search for leaks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from labkit.labs.catalog import find_labs
from labkit.labs.manifest import Lab
from labkit.review.versions import DATA_FILE, packed
from labstaff.derive.build import derived_files
from labstaff.release.choice import FOR_INSTRUCTORS, INSTRUCTORS_PAGES, MARKS, page_for, readme_for
from labstaff.release.leaks import find_leaks
from labstaff.review.versions import versions_of

RELEASED = (
    ".devcontainer",
    ".gitignore",
    ".vscode",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "docs",
    "labkit",
    "labs",
    "pyproject.toml",
)
INSTRUMENTS = ("labkit/meters/", "labkit/bench/")
"""What grades Lab 02 does what its answers do. Students may read it; a submission that imports it is a finding."""
KEPT_BACK = ("docs/figures/make/", "labkit/commands/lockfile.py", *INSTRUCTORS_PAGES)
COURSE_MAP_FIGURE = "docs/figures/00_course_map."
"""It shows every lab: kept back when labs are left out."""
FOR_THE_SANDBOX = ("capAdd", "securityOpt")
"""What a container may do so that submissions can be graded in it: nothing that a student's needs."""


def without_powers(text: str) -> str:
    """A devcontainer.json, `text`, without the capabilities that grading needs."""
    settings = {key: value for key, value in json.loads(text).items() if key not in FOR_THE_SANDBOX}
    return json.dumps(settings, indent=2) + "\n"


CHANGED: dict[str, Callable[[str], str]] = {
    ".devcontainer/Dockerfile": partial(FOR_INSTRUCTORS.sub, ""),
    ".devcontainer/devcontainer.json": without_powers,
    "pyproject.toml": partial(FOR_INSTRUCTORS.sub, ""),
    ".gitignore": lambda text: f"{text}/uv.lock\n",  # see `_with_versions`
}
FIGURE_SCRIPT = re.compile(r"\[([^\]]+)\]\(figures/make/[^)\s]+\)")
"""A page's link to the script of a figure: the scripts stay here, since they draw with the course's own tools."""


RULES = Path(__file__).with_name("assistants")


class Assistants(StrEnum):
    """What a release asks of coding assistants: to tutor, to help openly, or nothing at all (no AGENTS.md)."""

    TUTOR = "tutor"
    OPEN = "open"
    NONE = "none"


class Reviews(StrEnum):
    """When the versions of `lab review` open: never, when a lab's tasks are done, or at once."""

    NONE = "none"
    AFTER = "after"
    OPEN = "open"


class ReleaseError(RuntimeError):
    """The reason why nothing was released; the folder has been removed."""


def release(
    root: Path,
    out: Path,
    labs: Sequence[Lab] = (),
    assistants: Assistants = Assistants.TUTOR,
    reviews: Reviews = Reviews.AFTER,
) -> list[Path]:
    """Write the students' tree to `out`, which must not exist; returns the files, relative to it.

    Stubs and reports are derived afresh, whatever the working copy holds. Pages, pyproject.toml and the container's
    Dockerfile lose what is between `instructors: begin` and `instructors: end`.

    Args:
        root: the repository.
        out: the folder.
        labs: the labs of the course; all that are no drafts when empty. See `page_for` for the pages.
        assistants: what AGENTS.md lets a coding assistant do.
        reviews: when the versions of `lab review` open. They are texts of solutions in one compressed file a lab, the
            only file that is not searched for passages of solutions.

    Raises:
        ReleaseError: `out` exists, a lab is a draft, or a passage of a solution was found in the result.
    """
    if out.exists():
        raise ReleaseError(f"{out} exists already: name a folder that does not")
    if drafts := [lab.label for lab in labs if lab.draft]:
        raise ReleaseError(f"{', '.join(drafts)}: a draft is not released")
    every_lab = find_labs(root)
    labs = sorted(labs or [lab for lab in every_lab if not lab.draft], key=lambda lab: lab.number)
    left_out = [f"labs/{lab.folder.name}/" for lab in every_lab if lab not in labs]
    if any(lab not in labs and not lab.draft for lab in every_lab):
        left_out.append(COURSE_MAP_FIGURE)
    texts = {path.relative_to(root): text for lab in labs for path, text in derived_files(lab)}
    try:
        files = _released_files(root, set(texts), (*KEPT_BACK, *left_out))
        for file in files:
            _write(root, out, file, texts.get(file), labs)
        settings = out / "pyproject.toml"
        settings.write_text(_with_versions(settings.read_text(encoding="utf-8"), root), encoding="utf-8")
        if assistants is not Assistants.NONE:
            shutil.copyfile(RULES / f"{assistants}.md", out / "AGENTS.md")
            files.append(Path("AGENTS.md"))
        searched = [out / file for file in files if not str(file).startswith(INSTRUMENTS)]
        if leaks := find_leaks(every_lab, searched):
            passages = "\n".join(f"  {leak.file.relative_to(out)}: {leak.passage}" for leak in leaks[:10])
            raise ReleaseError(f"{len(leaks)} passages of solutions would be released; nothing was\n{passages}")
        if reviews is not Reviews.NONE:
            for lab in labs:
                file = Path("labs", lab.folder.name, DATA_FILE)
                (out / file).write_bytes(packed(versions_of(lab), after=reviews is Reviews.AFTER))
                files.append(file)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return files


def _released_files(root: Path, derived: set[Path], kept_back: tuple[str, ...]) -> list[Path]:
    """What git tracks or would track of the released folders, and every derived file."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *RELEASED]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    files = {Path(name) for name in found if name and not name.startswith(kept_back) and (root / name).is_file()}
    return sorted(files | derived)


def _with_versions(settings: str, root: Path) -> str:
    """The pyproject.toml `settings` with the versions of `root`'s lock file, for the packages that it needs, as pins.

    They replace a lock file: uv changes one that has no addresses as soon as it reads it, and git would show that.
    """
    groups = [f"--group={group}" for group in tomllib.loads(settings)["dependency-groups"]]
    options = ["--no-hashes", "--no-annotate", "--no-header", "--no-emit-project", "--no-default-groups", *groups]
    command = [os.environ.get("UV", "uv"), "export", "--project", str(root), "--frozen", "--offline", *options]
    exported = subprocess.run(command, capture_output=True, text=True)
    if exported.returncode:
        raise ReleaseError(f"uv cannot read uv.lock: {exported.stderr.strip()}")
    pins = "".join(f"    {json.dumps(line)},\n" for line in exported.stdout.splitlines())
    return settings.replace("[tool.uv]\n", f"[tool.uv]\nconstraint-dependencies = [\n{pins}]\n")


def _write(root: Path, out: Path, file: Path, text: str | None, labs: Sequence[Lab]) -> None:
    """Write one file of the tree; `text` is its text if that is derived."""
    target = out / file
    target.parent.mkdir(parents=True, exist_ok=True)
    if text is None and (change := CHANGED.get(str(file))):
        text = change((root / file).read_text(encoding="utf-8"))
    if file.suffix == ".md":
        page = FOR_INSTRUCTORS.sub("", (root / file).read_text(encoding="utf-8"))
        text = FIGURE_SCRIPT.sub(r"\1", MARKS.sub("", page_for(str(file), page, labs)))
        if file == Path("README.md"):
            text = readme_for(text, labs)
    if text is None:
        shutil.copyfile(root / file, target)
    else:
        target.write_text(text, encoding="utf-8")
