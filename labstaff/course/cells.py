"""Makes cells and outputs of a notebook, for whoever writes the whole notebook afterwards.

nbformat's own `new_code_cell` and the like check each piece by the notebook's schema; nbconvert checks the whole before
it is written, and so all of them once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def code_cell(source: str, identity: str, outputs: Sequence[Any] = ()) -> Any:
    """A code cell that was not run."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "id": identity,
        "metadata": {},
        "source": source,
    }
    return _node(cell | {"outputs": list(outputs)})


def markdown_cell(source: str, identity: str) -> Any:
    """A cell of text."""
    return _node({"cell_type": "markdown", "id": identity, "metadata": {}, "source": source})


def printed(text: str, name: str = "stdout") -> Any:
    """An output of printed text; `name` is `stdout` or `stderr`."""
    return _node({"output_type": "stream", "name": name, "text": text})


def displayed(data: dict[str, str]) -> Any:
    """An output that is shown, in the forms of `data`, by media type."""
    return _node({"output_type": "display_data", "metadata": {}, "data": data})


def returned(text: str) -> Any:
    """The output of a cell's last line."""
    told: dict[str, Any] = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
    return _node(told | {"data": {"text/plain": text}})


def failed(name: str, message: str, traceback: Sequence[str]) -> Any:
    """The output of a cell that raised."""
    return _node({"output_type": "error", "ename": name, "evalue": message, "traceback": list(traceback)})


def _node(content: dict[str, Any]) -> Any:
    import nbformat

    return nbformat.from_dict(content)
