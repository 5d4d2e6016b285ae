"""Which labs have a place in the model, as what; importing this imports no torch."""

from __future__ import annotations

ADAPTERS = {
    "01": "TextbookAttention",
    "03": "OnlineAttention",
    "04": "TiledAttention",
    "05": "FlashAttention",
    "08": "SlidingWindow",
    "09": "CachedDecoding",
    "11": "RingAttention",
    "12": "FewBits",
    "14": "SelectedPages",
}
"""The class in `labkit.chat.adapters` for each lab; a new lab's adapter goes here."""

SERVING = "13"
"""Serves several prompts at once: `labkit.chat.together`."""

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
