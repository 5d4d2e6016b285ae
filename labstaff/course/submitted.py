"""Reads a submitted notebook, whatever is in the file, and keeps only what a grader may look at."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labstaff.course.cells import code_cell, displayed, failed, markdown_cell, printed
from labstaff.course.ready import MOST_NOTEBOOK_BYTES, NOT_HANDED_IN, PUT_THERE
from labstaff.course.shown import shown_safely
from labstaff.grader.plain_text import one_line

LARGEST_IMAGE = 4 * 2**20
MOST_CELLS = 400
MOST_OUTPUTS = 20
LONGEST_SOURCE = 100_000
LONGEST_OUTPUT = 20_000
MOST_IMAGE_BYTES = 32 * 2**20
IMAGES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}


@dataclass
class Submitted:
    """The cells of a submission, made anew from what is harmless in it, and what was left out."""

    cells: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    image_bytes: int = 0

    def note(self, text: str) -> None:
        """Say `text` to the grader, once."""
        if text not in self.notes:
            self.notes.append(text)


def read_submitted(path: Path) -> Submitted:
    """The notebook at `path` as fresh cells: kind, source, `grade_id`, text and pictures; nothing else of the file.

    Never raises for what the file holds: one that is no notebook has no cells, and a note says why.
    """
    submitted = Submitted()
    try:
        if path.stat().st_size > MOST_NOTEBOOK_BYTES:
            raise ValueError(f"it is larger than {MOST_NOTEBOOK_BYTES >> 20} MiB")
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = notebook["cells"]
        if not isinstance(cells, list):
            raise ValueError("it has no list of cells")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "it has no cells" if isinstance(error, KeyError | TypeError) else str(error)
        submitted.note(f"{path.name} could not be read ({one_line(reason)}); an empty one stands in its place")
        return submitted
    metadata = notebook.get("metadata")
    if isinstance(metadata, dict) and metadata.get(PUT_THERE):
        submitted.note(NOT_HANDED_IN)
    if len(cells) > MOST_CELLS:
        submitted.note(f"{len(cells):,} cells were submitted; the first {MOST_CELLS} are shown")
    for cell in cells[:MOST_CELLS]:
        if isinstance(cell, dict) and (clean := _cell(cell, submitted)) is not None:
            submitted.cells.append(clean)
    return submitted


def _cell(cell: dict[str, Any], submitted: Submitted) -> Any:
    kind, source = cell.get("cell_type"), _text(cell.get("source"))
    if len(source) > LONGEST_SOURCE:
        submitted.note(f"a cell of {len(source):,} characters is cut at {LONGEST_SOURCE:,}")
        source = source[:LONGEST_SOURCE]
    identity = f"submitted-{len(submitted.cells):03d}"
    if kind == "code":
        clean = code_cell(source, identity, [*_outputs(cell.get("outputs"), submitted)])
    elif kind in ("markdown", "raw"):
        clean = markdown_cell(source, identity)
        if attachments := _attachments(cell.get("attachments"), submitted):
            clean["attachments"] = attachments
        clean.source = shown_safely(source, attachments)
        if clean.source != source:
            submitted.note("a text with HTML, pictures or links that a report does not need is shown as it was typed")
    else:
        return None
    metadata = cell.get("metadata")
    grading = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = grading.get("grade_id") if isinstance(grading, dict) else None
    if isinstance(grade_id, str):
        clean.metadata["nbgrader"] = {"grade_id": grade_id}
    return clean


def _outputs(outputs: Any, submitted: Submitted) -> Iterator[Any]:
    outputs = [output for output in outputs if isinstance(output, dict)] if isinstance(outputs, list) else []
    if len(outputs) > MOST_OUTPUTS:
        submitted.note(f"a cell has {len(outputs):,} outputs; the first {MOST_OUTPUTS} are shown")
    for output in outputs[:MOST_OUTPUTS]:
        kind = output.get("output_type")
        if kind == "stream":
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            yield printed(_cut(_text(output.get("text")), submitted), name)
        elif kind in ("display_data", "execute_result"):
            if data := _data(output.get("data"), submitted):
                yield displayed(data)
        elif kind == "error":
            traceback = output.get("traceback")
            lines = [_text(line) for line in traceback] if isinstance(traceback, list) else []
            name, message = _text(output.get("ename"))[:200], _text(output.get("evalue"))[:2000]
            yield failed(name, message, _cut("\n".join(lines), submitted).split("\n"))


def _data(data: Any, submitted: Submitted) -> dict[str, str]:
    """What of an output's forms is text or a picture; the others (HTML, scripts, widgets) could act."""
    clean: dict[str, str] = {}
    for kind, value in data.items() if isinstance(data, dict) else ():
        if kind in IMAGES:
            if picture := _picture(kind, value, submitted):
                clean[kind] = picture
        elif kind == "text/plain":
            clean[kind] = _cut(_text(value), submitted)
    if isinstance(data, dict) and data and not clean:
        submitted.note("an output that is neither text nor a PNG or JPEG picture is left out")
    return clean


def _picture(kind: str, value: Any, submitted: Submitted) -> str:
    """The picture in base64, written anew; empty when it is none or too large."""
    try:
        content = base64.b64decode("".join(_text(value).split()), validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content.startswith(IMAGES[kind]):
        submitted.note(f"an output called {kind} is none, and is left out")
        return ""
    if len(content) > LARGEST_IMAGE or submitted.image_bytes + len(content) > MOST_IMAGE_BYTES:
        submitted.note(f"a picture of {len(content):,} bytes is left out: too large")
        return ""
    submitted.image_bytes += len(content)
    return base64.b64encode(content).decode("ascii")


def _attachments(attachments: Any, submitted: Submitted) -> dict[str, dict[str, str]]:
    clean = {}
    for name, data in attachments.items() if isinstance(attachments, dict) else ():
        pictures = {kind: value for kind, value in _data(data, submitted).items() if kind in IMAGES}
        if isinstance(name, str) and pictures:
            clean[name] = pictures
    return clean


def _cut(text: str, submitted: Submitted) -> str:
    if len(text) <= LONGEST_OUTPUT:
        return text
    submitted.note(f"an output of {len(text):,} characters is cut at {LONGEST_OUTPUT:,}")
    return text[:LONGEST_OUTPUT] + "\n… (cut)"


def _text(value: Any) -> str:
    """A notebook's text: a string, or a list of its lines."""
    if isinstance(value, list):
        value = "".join(line for line in value if isinstance(line, str))
    text = value if isinstance(value, str) else ""
    return text.encode("utf-8", "replace").decode("utf-8")
