"""Shows the file that was judged to whoever grades: formgrader shows notebooks and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LONGEST = 200_000


def listing(path: Path) -> Any:
    """A cell whose output is the file with line numbers, in colours where a browser shows it. It cannot be run."""
    from nbformat import v4

    text, problem = _read(path)
    data = {"text/plain": problem or text}
    if not problem:
        data["text/html"] = _in_colours(text)
    return v4.new_code_cell(
        f"# {path.name}, as it was handed in", id="handed-in", outputs=[v4.new_output("display_data", data=data)]
    )


def _read(path: Path) -> tuple[str, str]:
    if path.is_symlink() or not path.is_file():
        return "", f"there is no file {path.parent.name}/{path.name}"
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    text = content[:LONGEST].decode("utf-8", "replace")
    if len(content) > LONGEST:
        text += f"\n# … cut at {LONGEST:,} bytes"
    return text, "" if text.strip() else f"{path.name} is empty"


def _in_colours(text: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(linenos="inline", noclasses=True, style="default")
    return highlight(text, PythonLexer(stripnl=False), formatter)
