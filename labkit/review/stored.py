"""What is stored of a lab's reviews between runs, in `.lab/`: verdicts, which mistakes were shown, and the counts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from labkit.labs.manifest import Lab
from labkit.suite.results import write_whole


class Verdict(msgspec.Struct, frozen=True):
    """What a task's tests say about one version.

    Attributes:
        failed: the first test that fails; empty where all pass.
        lines: why it fails.
        is_unwritten: whether it fails since the task itself is still to be written.
    """

    failed: str = ""
    lines: tuple[str, ...] = ()
    is_unwritten: bool = False

    @property
    def accepted(self) -> bool:
        """Whether every test passes."""
        return not self.failed


class StoredReview(msgspec.Struct):
    """What is stored of a lab.

    Attributes:
        verdicts: by `Runs.key`.
        shown: the names of the wrong versions that were found at some time, whose sentence was shown.
        n_found: by task, how many wrong versions are found; 0 while a right one is refused.
        n_wrong: how many there are in the lab.
    """

    verdicts: dict[str, Verdict] = {}
    shown: list[str] = []
    n_found: dict[str, int] = {}
    n_wrong: int = 0


def load_review(lab: Lab) -> StoredReview:
    """What is stored; nothing before the first run, or where the file cannot be read: it holds nothing of a student."""
    try:
        return msgspec.json.decode(_path(lab).read_bytes(), type=StoredReview)
    except (OSError, ValueError):
        return StoredReview()


def store_review(lab: Lab, review: StoredReview) -> None:
    """Store it.

    Raises:
        OSError: see `labkit.suite.results.write_whole`.
    """
    write_whole(_path(lab), msgspec.json.encode(review))


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}_review.json"
