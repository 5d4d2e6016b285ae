"""`lab hint`: shows a task's hints one at a time, from a nudge to nearly the solution."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.labs.catalog import find_task
from labkit.labs.manifest import Lab
from labkit.suite.results import load, next_task


def hint_lines(lab: Lab, task_name: str | None, *, again: bool = False) -> list[str]:
    """The task's next hint, which is remembered as shown; with `again`, all that were shown before.

    Raises:
        UnknownLab: the lab has no such task.
    """
    task = find_task(lab, task_name) if task_name else next_task(lab, load(lab))
    if task is None:
        return [f"{lab.label}: every task is done"]
    shown = _load(lab)
    count = shown.get(task.name, 0)
    total = len(task.hints)
    head = f"{lab.label} · {task.name}"
    if again:
        lines = [f"{head} · hint {i} of {total}: {task.hints[i - 1]}" for i in range(1, count + 1)]
        return lines or [f"{head} · no hint shown yet"]
    number = min(count + 1, total)
    _store(lab, {**shown, task.name: number})
    lines = [f"{head} · hint {number} of {total}", "", task.hints[number - 1], ""]
    if count >= total:
        return [*lines, "That was the last hint; --again shows them all. The handout's chapter has the rest."]
    if number < total:
        lines.append(f"Not enough? For the next one: uv run lab hint {lab.number} {task.name}")
    return lines


def _path(lab: Lab) -> Path:
    return lab.folder.parent.parent / ".lab" / f"{lab.label}-hints.json"


def _load(lab: Lab) -> dict[str, int]:
    try:
        return dict(json.loads(_path(lab).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _store(lab: Lab, shown: dict[str, int]) -> None:
    _path(lab).parent.mkdir(parents=True, exist_ok=True)
    _path(lab).write_text(json.dumps(shown), encoding="utf-8")
