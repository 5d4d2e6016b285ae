"""What the judge found in one submission, and the file in which it is kept."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class JudgedSubmission:
    """The outcome for one submission of one lab.

    `status` is "judged" or "refused" (nothing could be judged; `reason` says why, and all points are 0). `flags` are
    for the grader to look at. `tests` maps a test's id (`TestClass::test_name`) to "passed", "failed" or "missing",
    `messages` a failed test's id to what a student would read, `tasks` a task to the points it earns.
    """

    lab: str
    key: str
    status: str
    reason: str = ""
    flags: list[str] = field(default_factory=list)
    tests: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        """What all tasks earn together."""
        return sum(self.tasks.values())


def path_of(results: Path, lab: str, key: str) -> Path:
    """Where the result for the submission with content `key` is kept."""
    return results / lab / f"{key}.json"


def load(path: Path) -> JudgedSubmission | None:
    """The result kept at `path`; None when there is none, or the file is no result."""
    try:
        return JudgedSubmission(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def save(path: Path, judged: JudgedSubmission) -> None:
    """Keep a result: the file is there whole or not at all, also when this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as file:
        json.dump(asdict(judged), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
