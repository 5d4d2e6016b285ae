"""Takes two files from each submission, the code and the report, and writes them cleaned for nbgrader to read.

nbgrader follows links, copies every file, and shows what a notebook holds in a page that may change grades. So it never
reads `submitted/`: it reads `accepted/`, which holds regular files of bounded size that are written here.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from labkit.labs.manifest import Lab
from labstaff.course.paths import ACCEPTED, NOTEBOOK, SUBMITTED, TIMESTAMP, SubmissionPaths
from labstaff.grader.bounded import TooMuch, bounded
from labstaff.grader.plain_text import one_line
from labstaff.grader.submission import NOTES_FILE, read_code, read_part, read_regular, reason_of
from labstaff.grading.run import announced
from labstaff.grading.submitted import Submitted, find_submissions

MAX_NOTEBOOK_BYTES = 24 << 20
MAX_CELLS = 1000
MAX_OUTPUTS = 200
LONGEST_TEXT = 20_000
MAX_TEXT = 500_000
LONGEST_QUOTE = 60
LONGEST_TIMESTAMP = 1000
PICTURES = ("image/png", "image/jpeg")
NOT_IN_NAMES = "*?[]"
"""nbgrader takes these for patterns in a student's name."""

Text = str | list[str]


class Output(msgspec.Struct):
    """One output of a code cell, as Jupyter saves it."""

    output_type: str
    name: str = ""
    text: Text = ""
    data: dict[str, Any] = {}
    ename: str = ""
    evalue: str = ""


class Cell(msgspec.Struct):
    """One cell, as Jupyter saves it."""

    cell_type: Literal["code", "markdown", "raw"]
    source: Text = ""
    metadata: dict[str, Any] = {}
    outputs: list[Output] = []
    attachments: dict[str, dict[str, Any]] = {}


class Notebook(msgspec.Struct):
    """What is read of a submitted notebook."""

    cells: list[Cell]


def accept_all(course: Path, labs: Sequence[Lab], say: Callable[[str], None] = print) -> dict[tuple[str, str], str]:
    """Make `accepted/` hold the present submissions of `labs`, and nothing else of these labs.

    Args:
        course: the course's folder.
        labs: the labs.
        say: prints a line: whose submission it is, where reading it takes long.

    Returns:
        Why a submission was not accepted, by student and assignment. The others are accepted.
    """
    problems: dict[tuple[str, str], str] = {}
    (course / ACCEPTED).mkdir(exist_ok=True)
    for lab in labs:
        for folder in (course / ACCEPTED).glob(f"*/{lab.folder.name}"):
            shutil.rmtree(folder)
    for submitted in find_submissions(course / SUBMITTED, labs):
        paths = SubmissionPaths(course, submitted.student, submitted.lab.folder.name)
        try:
            if one_line(paths.student) != paths.student or set(paths.student) & set(NOT_IN_NAMES):
                raise OSError("nbgrader takes no such name: rename the folder, without any of * ? [ ]")
            with announced(f"reading {paths.student}'s {paths.assignment}", say):
                _accept(submitted, paths)
        except OSError as error:
            problems[paths.student, paths.assignment] = one_line(error)
    return problems


def _accept(submitted: Submitted, paths: SubmissionPaths) -> None:
    """Write one submission's files, and for the grader what to look at: why there is no code first, if that is so."""
    lab = submitted.lab
    place = _archive_in(submitted.path, lab) or submitted.path
    submission = read_code(lab, place)
    notes = [*([submission.problem] if submission.problem else []), *submission.flags]
    released = (paths.released / NOTEBOOK).read_bytes()
    try:
        notebook, remarks = bounded(_clean_notebook, lab, place, released)
    except TooMuch as error:
        notebook, remarks = released, [_not_read(error)]
    folder, archive = submitted.path.with_suffix(""), submitted.path.with_suffix(".zip")
    if (folder / TIMESTAMP).exists():
        remarks.append(f"{TIMESTAMP} is not read, since students can upload one: see “Late work” in the guide")
    if submitted.path == folder and archive.exists():
        remarks.append(f"{folder.name} is graded, and {archive.name} next to it is not read")
    content = {
        f"src/{lab.module}.py": None if submission.problem else submission.source,
        NOTEBOOK: notebook,
        TIMESTAMP: _timestamp(paths.time_file, remarks),
        NOTES_FILE: "".join(f"{one_line(note)}\n" for note in [*notes, *remarks]).encode() or None,
    }
    for name, wanted in content.items():
        if wanted is not None:
            path = paths.accepted / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted)


def _timestamp(file: Path, notes: list[str]) -> bytes | None:
    """The file's content if nbgrader can read it: with another one, nbgrader would record nothing."""
    from nbgrader.utils import parse_utc

    content = read_regular(file, LONGEST_TIMESTAMP)
    if content is None:
        return None
    try:
        parse_utc(content.decode().strip())
    except (ValueError, OverflowError) as error:
        notes.append(f"{file.name} cannot be read, so this counts as in time: {reason_of(error)}")
        return None
    return content


def _archive_in(place: Path, lab: Lab) -> Path | None:
    """The zip archive in a folder that holds one and neither of the two files, as learning platforms deliver it."""
    if not place.is_dir() or any((place / name).exists() for name in (NOTEBOOK, "src", f"{lab.module}.py")):
        return None
    archives = [path for path in place.glob("*.zip") if path.is_file() and not path.is_symlink()]
    return archives[0] if len(archives) == 1 else None


def _clean_notebook(lab: Lab, place: Path, released: bytes) -> tuple[bytes, list[str]]:
    """The submitted report with its text, code, printed text and pictures; the released one where it cannot be read.

    What a cell is worth comes from the released notebook. nbgrader then restores the text of check cells and puts
    deleted ones back. Also returns remarks for the grader.
    """
    remarks: list[str] = []
    try:
        content = read_part(lab, place, NOTEBOOK, "", MAX_NOTEBOOK_BYTES, remarks)
        cells = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=Notebook).cells
        if len(cells) > MAX_CELLS:
            raise ValueError(f"it has {len(cells):,} cells")
        notebook = json.loads(released)
        graded = {grade_id: cell for cell in notebook["cells"] if (grade_id := _grade_id(cell["metadata"]))}
        # of an answer given twice, the last; nbgrader's DeduplicateIds fails where OverwriteCells puts cells back
        last = {_grade_id(cell.metadata): i for i, cell in enumerate(cells)}
        counts = {i: graded[grade_id] for grade_id, i in last.items() if grade_id in graded}
        clean = [_clean_cell(cell, i, counts.get(i)) for i, cell in enumerate(cells)]
        _cut_texts(clean)
        remarks += _astray(clean, notebook["cells"])
        return json.dumps({**notebook, "cells": clean}).encode(), remarks
    except Exception as error:  # a made-up archive can make zipfile raise nearly anything
        return released, [*remarks, _not_read(error)]


def _not_read(error: Exception) -> str:
    return f"{NOTEBOOK} cannot be read: {reason_of(error)}; the released one is used"


def _astray(cells: list[dict], released: list[dict]) -> list[str]:
    """For each answer that is not in its cell: the student's own cells of its kind, one of which may hold it."""
    known = {_text(cell["source"]).strip() for cell in released} | {""}
    given = {_grade_id(cell["metadata"]): cell["source"] for cell in cells}
    own: dict[str, list[str]] = {}
    for number, cell in enumerate(cells, 1):
        if not cell["metadata"] and cell["source"].strip() not in known:
            own.setdefault(cell["cell_type"], []).append(f"{number}, “{one_line(cell['source'], LONGEST_QUOTE)}”")
    remarks = []
    for cell in released:
        grade_id = _grade_id(cell["metadata"])
        is_answer = grade_id and cell["metadata"]["nbgrader"].get("solution")
        if is_answer and given.get(grade_id, "").strip() in known and (places := own.get(cell["cell_type"])):
            remarks.append(f"no answer in the cell {grade_id}; it may be in cell {' or in cell '.join(places[:3])}")
    return remarks


def _grade_id(metadata: dict[str, Any]) -> str:
    grading = metadata.get("nbgrader")
    grade_id = grading.get("grade_id") if isinstance(grading, dict) else None
    return grade_id if isinstance(grade_id, str) else ""


def _clean_cell(cell: Cell, number: int, released: dict | None) -> dict:
    """Args: `released` is the graded cell that this one is; None for an ordinary cell."""
    is_code = (released["cell_type"] if released else cell.cell_type) == "code"
    clean: dict[str, Any] = {
        "cell_type": "code" if is_code else "markdown",
        "id": f"submitted-{number}",
        "metadata": released["metadata"] if released else {},
        "source": _text(cell.source),
    }
    if is_code:
        outputs = [_clean_output(output) for output in cell.outputs[:MAX_OUTPUTS]]
        return clean | {"execution_count": None, "outputs": [output for output in outputs if output]}
    attachments = {name: _pictures(data) for name, data in cell.attachments.items()}
    return clean | {"attachments": attachments} if attachments else clean


def _clean_output(output: Output) -> dict | None:
    """Text and pictures; HTML, scripts and widgets, which could act in the grader's browser, are left out."""
    if output.output_type == "stream":
        name = "stderr" if output.name == "stderr" else "stdout"
        return {"output_type": "stream", "name": name, "text": _text(output.text)}
    if output.output_type == "error":
        return {"output_type": "stream", "name": "stderr", "text": f"{output.ename}: {output.evalue}"}
    data = _pictures(output.data)
    if isinstance(text := output.data.get("text/plain"), str | list):
        data["text/plain"] = _text(text)
    return {"output_type": "display_data", "metadata": {}, "data": data} if data else None


def _pictures(data: dict[str, Any]) -> dict[str, str]:
    """The pictures among an output's forms, as plain base64."""
    found = {}
    for kind in PICTURES:
        with contextlib.suppress(ValueError, TypeError):
            text = "".join(_text(data.get(kind, "")).split())
            if base64.b64decode(text, validate=True):
                found[kind] = text
    return found


def _text(text: Any) -> str:
    return text if isinstance(text, str) else "".join(line for line in text if isinstance(line, str))


def _cut_texts(cells: list[dict]) -> None:
    """Have no text longer than `LONGEST_TEXT`, nor all together than `MAX_TEXT`; what is printed is cut first."""
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    texts = [(cell, "source") for cell in cells]
    texts += [(output, "text") for output in outputs if "text" in output]
    texts += [(data, "text/plain") for output in outputs if "text/plain" in (data := output.get("data", {}))]
    left = MAX_TEXT
    for holder, key in texts:
        most, text = max(0, min(LONGEST_TEXT, left)), holder[key]
        left -= min(len(text), most)
        holder[key] = text if len(text) <= most else f"{text[:most]}\n… (cut)"
