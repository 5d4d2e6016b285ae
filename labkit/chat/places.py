"""Which labs have a place in the model, as what; importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.labs.manifest import Lab

ADAPTERS = tuple(sorted(file.stem[3:] for file in (Path(__file__).parent / "adapters").glob("lab[0-9][0-9].py")))
"""The labs with a file in `labkit/chat/adapters`."""

SERVING = "13"
"""Serves several prompts at once: `labkit.chat.together`."""

STATES = "15"
"""Runs models that have states, too."""

DEFAULT_PROMPT = "Explain in two sentences why the sky is blue."

SELECTION = "14"
"""Reads a part of the cache for each token, in all layers but the first ones."""

PARTS = {"prompt": ("01", "03", "04", "05"), "cache": ("09", "12"), "token": ("09", SELECTION), "steps": (SERVING,)}
"""The labs that can be each part of the engine."""

NO_PLACE = {
    "02": "its tracker measures a model and is no part of one",
    "06": "recomputation saves memory in training: uv run lab train --checkpoint",
    "07": "linear attention needs a model that was trained with it",
    "10": "its kernels need a GPU",
}
"""Why the others have none."""


def command_for(number: str) -> str:
    """The command that runs a lab's code in the model; "" if there is none."""
    if number in ADAPTERS or number == SERVING:
        return f"uv run lab chat {number}"
    return "uv run lab train --checkpoint" if number == "06" else ""


def parts_of(finished: Mapping[str, Lab]) -> dict[str, Lab]:
    """The lab for each part of the engine, of those finished, by their numbers."""
    found = {}
    for part, numbers in PARTS.items():
        if done := [finished[number] for number in numbers if number in finished]:
            found[part] = done[-1]
    if "steps" in found and SELECTION not in finished:  # then all layers read the server's blocks
        found.pop("cache", None)
        found.pop("token", None)
    return found


def finished_parts() -> dict[str, Lab]:
    """The labs that make the engine, by their parts: of those of which every task is done."""
    from labkit.labs.catalog import find_labs
    from labkit.suite.results import load, next_task

    return parts_of({lab.number: lab for lab in find_labs() if next_task(lab, load(lab)) is None})
