"""Says which pages the site has, where their sources lie, and in which order a reader meets them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.project import Project
from sphinx.util._pathlib import _StrPath

ROOT_PAGE = "index"
"""The front page's name; its source is docs/README.md, which a code host shows for the folder."""
CHAPTER = re.compile(r"(\d\d)_\w+")
GROUPS: dict[str, tuple[str, ...]] = {
    "The course": ("course_map", "self_study"),
    "Chapters": (),
    "To play with": ("tile_loop", "cache_blocks", "ring", "trace"),
    "Labs": (),
    "Look up": ("glossary", "references"),
    "Instructors": ("instructors", "what_goes_wrong"),
}
"""Captions of the navigation and the pages below them, as far as they are there. Chapters and labs find their own
place by their names; what nothing here knows of comes last."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Put the handouts among the pages, and the navigation below the front page."""
    app.add_config_value("further_pages", "", "env")
    app.connect("builder-inited", _take_over)
    app.connect("source-read", _add_navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class House(Project):
    """The pages of docs/, the handout of each lab as `labs/labNN_name`, and those in the folder `further`, if any.

    Links between files of the repository then mean the same on a code host and in the site.
    """

    further = ""

    def discover(self, exclude_paths: Iterable[str] = (), include_paths: Iterable[str] = ("**",)) -> set[str]:
        """Find the pages; see `Project.discover`."""
        super().discover(exclude_paths, include_paths)
        self.docnames.discard("README")
        handouts = sorted((self.srcdir.parent / "labs").glob("lab*/README.md"))
        elsewhere = {ROOT_PAGE: Path("README.md")}
        elsewhere |= {f"labs/{file.parent.name}": Path("..", "labs", file.parent.name, file.name) for file in handouts}
        for file in Path(self.further).rglob("*.md") if self.further else ():
            page = str(file.relative_to(self.further).with_suffix(""))
            elsewhere[page] = Path(os.path.relpath(file, self.srcdir))
        for page, path in elsewhere.items():
            self.docnames.add(page)
            self._docname_to_path[page] = path
            self._path_to_docname[path] = page
        return self.docnames

    def path2doc(self, filename: str | os.PathLike[str]) -> str | None:
        """The page whose source is `filename`, given absolutely or as seen from docs/."""
        path = Path(os.path.relpath(self.srcdir / filename, self.srcdir))
        return self._path_to_docname.get(path) or (None if ".." in path.parts else super().path2doc(path))


def navigation(pages: Iterable[str]) -> dict[str, list[str]]:
    """Return captions and the pages below them, in reading order; every page but the front page, once."""
    left = sorted(set(pages) - {ROOT_PAGE})
    found = {caption: [page for page in names if page in left] for caption, names in GROUPS.items()}
    found["Chapters"] = [page for page in left if CHAPTER.fullmatch(page)]
    found["Labs"] = [page for page in left if page.startswith("labs/")]
    found["Instructors"] += [page for page in left if page.startswith("what_goes_wrong/")]
    placed = {page for names in found.values() for page in names}
    found["More"] = [page for page in left if page not in placed]
    return {caption: names for caption, names in found.items() if names}


def _take_over(app: Sphinx) -> None:
    house = House(app.srcdir, app.config.source_suffix)
    house.further = app.config.further_pages
    app.project = app.env.project = house


def _add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the navigation where Sphinx looks for it, in memory: on a code host it would show as code."""
    if page != ROOT_PAGE:
        return
    for caption, names in navigation(app.env.found_docs).items():
        entries = "\n".join(_entry(app.env.doc2path(name), name) for name in names)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _entry(path: _StrPath, page: str) -> str:
    """A line of a toctree: chapters show their number."""
    chapter = CHAPTER.fullmatch(page)
    title = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{int(chapter[1])}. {title[1]} </{page}>" if chapter and title else f"/{page}"
