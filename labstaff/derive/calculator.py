"""Derives the calculator's rules and configurations from those of `lab model`."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.bench import model_config
from labkit.bench.model_config import PUBLISHED
from labstaff.derive.hybrids import MODELS

SCRIPT = Path("docs", "_static", "six_numbers", "rules.js")
TABLES = (
    *("NAMES", "KINDS", "CODES", "PERIODS", "LETTERS", "LIMITS", "PATTERNS", "HIDDEN", "READ", "WORDS", "HARMLESS"),
    *("TEXT_PARTS", "MAX_LAYERS"),
)
"""The tables of model_config.py that its functions, and the calculator's, read."""


def refresh_script(root: Path) -> list[Path]:
    """Derive the script again; returns it if it changed."""
    path = root / SCRIPT
    fresh = script()
    if path.is_file() and path.read_text(encoding="utf-8") == fresh:
        return []
    path.write_text(fresh, encoding="utf-8")
    return [path]


def script() -> str:
    """Return JavaScript with the tables of the rules, and the shipped configurations by name."""
    tables = {name: getattr(model_config, name) for name in TABLES}
    shipped = {MODELS[name]: json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8")) for name in MODELS}
    return (
        "/* From labkit/bench/model_config.py and its configurations, by `lab build`. */\n"
        f"globalThis.sixNumbersRules = {_as_script(tables)};\n"
        f"globalThis.sixNumbersConfigs = {_as_script(shipped)};\n"
    )


def _as_script(tables: dict[str, object]) -> str:
    """One line for each table: a change shows in the diff."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, default=sorted)}," for name, value in tables.items()]
    return "\n".join(["{", *lines, "}"])
