"""Runs the JavaScript of an interactive page without a browser."""

from __future__ import annotations

import json
from typing import Any

from labkit.labs.catalog import ROOT


class PageScript:
    """The functions of some files in `docs/_static/NAME`."""

    def __init__(self, name: str, *files: str) -> None:
        import quickjs

        self._context = quickjs.Context()
        for file in files:
            self._context.eval((ROOT / "docs" / "_static" / name / file).read_text(encoding="utf-8"))

    def __call__(self, function: str, *arguments: Any) -> Any:
        """The result of the JavaScript `function` for arguments that JSON can represent."""
        values = ", ".join(json.dumps(argument) for argument in arguments)
        return json.loads(self._context.eval(f"JSON.stringify(({function})({values}))"))
