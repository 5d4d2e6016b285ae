"""Reads what a learning platform calls what a course knows: a mapping, and the platform's own list of students.

The mappings that come with the course lie in `mappings/`. One's own is a TOML file that may begin with a base and then
says only what differs:

    base = "canvas"
    key = "SIS User ID"                     # the column of the roster that holds the course's names of students

    [labs]
    lab01_memory_profiling = "Lab 01: Memory profiling (4711)"

    [students]                              # who is called otherwise there
    ann = "a.smith"
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import msgspec

MAPPINGS = Path(__file__).parent / "mappings"
OF_STUDENT = ("student_id", "last_name", "first_name", "email")
OF_LAB = ("folder", "label", "number", "title")


class MappingError(ValueError):
    """A mapping or a roster that cannot be used; the message names the file and what was expected there."""


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a platform calls what a course knows.

    `columns` are a student's, by header, each a template of `OF_STUDENT`; what the roster says under the same header
    stands in its place. `key` is the roster's column that holds a student's name in the course. `cell`, `penalty` and
    `score` are the headers of a lab's columns, templates of `OF_LAB`, and in `cell` of the task's or question's `name`;
    where one is empty there is no such column. `labs` names single labs' score columns, by their folders; `students`
    those who are called otherwise on the platform. `max_row` begins a line of the most points. `missing` is what stands
    for one who handed nothing in.
    """

    columns: dict[str, str]
    key: str = ""
    cell: str = ""
    penalty: str = ""
    score: str = ""
    missing: str = ""
    max_row: dict[str, str] = {}
    labs: dict[str, str] = {}
    students: dict[str, str] = {}


def known_mappings() -> list[str]:
    """The names of the mappings that come with the course."""
    return sorted(path.stem for path in MAPPINGS.glob("*.toml"))


def read_mapping(name: str) -> Mapping:
    """The mapping that `name` names: one that comes with the course, or a TOML file.

    Raises:
        MappingError: there is none, or it is malformed.
    """
    path = MAPPINGS / f"{name}.toml" if name in known_mappings() else Path(name)
    own = _read(path)
    base = own.pop("base", None)
    if base is not None and base not in known_mappings():
        raise MappingError(f"{path}: base: expected one of {', '.join(known_mappings())}, found {base!r}")
    of_base = _read(MAPPINGS / f"{base}.toml") if base else {}
    try:
        mapping = msgspec.convert({**of_base, **own}, Mapping)
    except msgspec.ValidationError as error:
        raise MappingError(f"{path}: {error}") from None
    for template in mapping.columns.values():
        _try_out(path, template, OF_STUDENT)
    for template in (mapping.cell, mapping.penalty, mapping.score):
        _try_out(path, template, (*OF_LAB, "name"))
    return mapping


def read_roster(path: Path, key: str) -> dict[str, dict[str, str]]:
    """The students of a CSV file that a platform has exported: by what it says in the column `key`, all that it says.

    Lines without a key, as Canvas' `Points Possible`, are nobody's. Commas, semicolons or tabs between cells.

    Raises:
        MappingError: it cannot be read, has no such column, or names somebody twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise MappingError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    found: dict[str, dict[str, str]] = {}
    table = csv.DictReader(text.splitlines(), delimiter=delimiter, restkey="", restval="")
    if key not in (table.fieldnames or ()):
        raise MappingError(f"{path}: expected a column {key!r} with the course's names of students, found {header!r}")
    for row in table:
        name = row[key].strip()
        if name and name in found:
            raise MappingError(f"{path}: {name!r} stands twice in the column {key!r}")
        if name:
            found[name] = row
    return found


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        there = ", ".join(known_mappings())
        raise MappingError(f"there is no mapping {path}: name a TOML file, or one of {there}") from None
    except ValueError as error:
        raise MappingError(f"{path}: not valid TOML: {error}") from None


def _try_out(path: Path, template: str, names: tuple[str, ...]) -> None:
    try:
        template.format_map(dict.fromkeys(names, ""))
    except (KeyError, IndexError, ValueError, AttributeError):
        known = ", ".join(f"{{{name}}}" for name in names)
        raise MappingError(f"{path}: {template!r}: expected a text with some of {known}") from None
