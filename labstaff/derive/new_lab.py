"""`lab new`: a copy of the lab in `labstaff/template`, under another number and name.

The copy passes its own checks before anything of it is rewritten: it has a task that adds 1, two alternative solutions
and a mistake.
"""

from __future__ import annotations

import re
from pathlib import Path

from labkit.labs.catalog import find_lab, find_labs
from labkit.labs.manifest import Lab
from labstaff.derive.build import build

TEMPLATE = Path(__file__).parents[1] / "template"
CHAPTERS = Path("docs", "README.md")
CHAPTER_ROW = re.compile(r"^\| \d+ \| \[.*\|\n", re.MULTILINE)


class NewLabError(ValueError):
    """The reason why no lab was made; nothing was written."""


def new_lab(root: Path, number: str, name: str) -> list[Path]:
    """Write lab `number`, `labNN_name`, under `root`; returns its files, with those derived from them.

    Raises:
        NewLabError: the number or the name is taken, or cannot be one.
    """
    if not re.fullmatch(r"\d\d?", number) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise NewLabError(f"a lab has a number like 14 and a name like ring_attention, not {number!r} and {name!r}")
    number = f"{int(number):02d}"
    for lab in find_labs(root):
        if lab.number == number or lab.module == name:
            raise NewLabError(f"{lab.folder.name} is there already")
    renamed = {"00": number, "new_lab": name, "New lab": name.replace("_", " ").capitalize()}
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_file() and source.suffix in (".md", ".py", ".toml"):
            target = root / _with_names(str(source.relative_to(TEMPLATE)), renamed)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_with_names(source.read_text(encoding="utf-8"), renamed), encoding="utf-8")
            written.append(target)
    lab = find_lab(number, root)
    return [*written, *build(lab), _add_to_chapters(root, lab)]


def _with_names(text: str, renamed: dict[str, str]) -> str:
    for old, new in renamed.items():
        text = text.replace(old, new)
    return text


def _add_to_chapters(root: Path, lab: Lab) -> Path:
    """Add the chapter to the table of chapters, as its last row."""
    page = root / CHAPTERS
    text = page.read_text(encoding="utf-8")
    row = f"| {int(lab.number)} | [{lab.title}]({Path(lab.read[0]).name}) | What is its question? | "
    row += f"[{lab.number}](../labs/{lab.folder.name}/README.md) |\n"
    end = max((found.end() for found in CHAPTER_ROW.finditer(text)), default=len(text))
    page.write_text(text[:end] + row + text[end:], encoding="utf-8")
    return page
