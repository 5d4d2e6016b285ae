"""Finds labs, tasks and their files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from labkit.labs.manifest import FOLDER_PATTERN, MANIFEST_NAME, Lab, ManifestError, Task, read_manifest

REVIEW = "_review"
"""Ends the name of a review's assignment."""
REVIEW_HELPERS = ("meters", "serving")
"""Packages of labkit that the tests of a review may use: meters, and the engine that serves traces of requests."""
ROOT = Path(__file__).resolve().parents[2]


class UnknownLab(LookupError):
    """There is no lab or task of the given name; the message lists the existing ones."""


def find_labs(root: Path = ROOT) -> list[Lab]:
    """Every lab under `root/labs`, by number.

    A folder without a manifest is no lab: git leaves one behind, with `__pycache__` in it, where a lab was deleted.

    Raises:
        ManifestError: a manifest is malformed, or two labs share a number or a module name.
    """
    manifests = sorted((root / "labs").glob(f"lab*/{MANIFEST_NAME}"))
    labs = [read_manifest(path) for path in manifests if FOLDER_PATTERN.fullmatch(path.parent.name)]
    for what in ("number", "module"):
        seen: dict[str, Lab] = {}
        for lab in labs:
            other = seen.setdefault(getattr(lab, what), lab)
            if other is not lab:
                raise ManifestError(
                    f"{lab.folder / MANIFEST_NAME}: {what}: expected one of its own, "
                    f"found {getattr(lab, what)!r}, which {other.folder.name} has"
                )
    return labs


def find_lab(key: str, root: Path = ROOT) -> Lab:
    """The lab that `key` names: `1`, `01`, `lab01`, its folder's name or a path into it.

    `lab05_review` names the assignment of that lab's review: see `review_assignment`.

    Raises:
        UnknownLab: there is none.
    """
    name = Path(key).name
    if name.endswith(REVIEW):
        return review_assignment(find_lab(name.removesuffix(REVIEW), root))
    labs = find_labs(root)
    digits = re.fullmatch(r"(?:lab)?(\d{1,2})", name)
    for lab in labs:
        if name == lab.folder.name or (digits and int(digits[1]) == int(lab.number)):
            return lab
    there = ", ".join(f"{lab.number} ({lab.title})" for lab in labs) or "none"
    raise UnknownLab(f"there is no lab {key!r}; there are: {there}")


def review_assignment(lab: Lab) -> Lab:
    """The review of `lab` as an assignment of its own: `lab05_review`, whose file is `src/review.py`.

    Its tasks share the lab's `review_points` as they share the lab's own. It has no folder in `labs/`.
    """
    share = lab.review_points / lab.points
    helpers = sorted(file for folder in REVIEW_HELPERS for file in (ROOT / "labkit" / folder).rglob("*.py"))
    return replace(
        lab,
        folder=lab.folder.with_name(f"{lab.label}{REVIEW}"),
        title=f"{lab.title}: review",
        module="review",
        libraries=(
            *lab.libraries,
            lab.module,
            "numpy",
            "torch",
            "pytest",
            *(".".join(f.relative_to(ROOT).with_suffix("").parts) for f in helpers),
            "labkit.kernels.resources",
        ),
        tasks=tuple(replace(task, points=round(share * task.points, 2), own_work=False) for task in lab.tasks),
        questions=(),
    )


def reviewed_lab(lab: Lab) -> Lab | None:
    """The lab whose review `lab` is; None for a lab."""
    is_review = lab.folder.name.endswith(REVIEW)
    return find_lab(lab.label, lab.folder.parents[1]) if is_review else None


def find_assignments(root: Path = ROOT) -> list[Lab]:
    """Every lab, and the review of each."""
    labs = find_labs(root)
    return [*labs, *map(review_assignment, labs)]


def python_path(environment: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH for a Python process of the course: this repository first, and no relative path.

    An empty or relative entry means the current folder, which may hold a submission's files.
    """
    others = environment.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *filter(os.path.isabs, others)])


def solution_folder(lab: Lab) -> Path:
    """The lab's folder in `solutions/`, which students never see."""
    return lab.folder.parents[1] / "solutions" / (reviewed_lab(lab) or lab).folder.name


def solution_file(lab: Lab) -> Path:
    """The course's solution, in that folder; of a review, its model answer."""
    return solution_folder(lab) / ("review.py" if reviewed_lab(lab) else f"src/{lab.module}.py")


def find_task(lab: Lab, name: str) -> Task:
    """The task of `lab` that `name` names, or whose tests it names.

    Raises:
        UnknownLab: the lab has no such task.
    """
    for task in lab.tasks:
        if name in (task.name, task.tests):
            return task
    raise UnknownLab(f"{lab.label} has no task {name!r}; its tasks are: {', '.join(task.name for task in lab.tasks)}")


def lab_at(path: Path, labs: list[Lab]) -> Lab | None:
    """The lab whose folder holds `path`."""
    return next((lab for lab in labs if path.is_relative_to(lab.folder)), None)
