"""Which labs have a place in the model, as what; importing this imports no torch."""

from __future__ import annotations

from pathlib import Path

ADAPTERS = tuple(sorted(file.stem[3:] for file in (Path(__file__).parent / "adapters").glob("lab[0-9][0-9].py")))
"""The labs with a file in `labkit/chat/adapters`."""

SERVING = "13"
"""Serves several prompts at once: `labkit.chat.together`."""

STATES = "15"
"""Runs models that have states, too."""

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
