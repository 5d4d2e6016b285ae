"""Checks a built site: each link, anchor and file in it is there, and nothing is loaded from elsewhere.

LinkChecker 10.6 finds half of this from disk (not what loads from elsewhere, leads out of the site or bears an id
twice) and takes a hundred times as long; Sphinx's linkcheck asks other machines, and sees no page as it was built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

LOADED = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("image", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("input", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("track", "src"),
    ("use", "href"),
    ("video", "poster"),
    ("video", "src"),
}
"""Attributes from which a browser loads without being asked; `a` and `form` wait for a click."""
FOLLOWED = {("a", "href"), ("area", "href"), ("form", "action")}
IN_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
RAW_TEX = re.compile(r"\$\$|\\\(|\\\[|\\begin\{|\\frac")


def problems(site: Path) -> list[str]:
    """Return one line for each thing that is wrong with the site in the folder `site`; none is what one wants.

    Looked at are the links of all pages, their anchors, whatever pages and style sheets load, and text that looks like
    TeX which was never rendered.
    """
    pages = {file: _read(file) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        name = file.relative_to(site)
        found += [f"{name}: {why}" for target in page.loaded if (why := _loads(site, file, target))]
        found += [f"{name}: {why}" for target in page.followed if (why := _leads(site, file, target, pages))]
        found += [f"{name}: the id {anchor!r} is there twice" for anchor in sorted(page.twice)]
        found += [f"{name}: TeX that was not rendered: {text.strip()[:60]!r}" for text in page.tex]
    for file in sorted(site.rglob("*.css")):
        targets = [first or second for first, second in IN_CSS.findall(file.read_text(encoding="utf-8"))]
        found += [f"{file.relative_to(site)}: {why}" for target in targets if (why := _loads(site, file, target))]
    return found


@dataclass
class _Page(HTMLParser):
    """What one page refers to, and what can be referred to in it."""

    loaded: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    tex: list[str] = field(default_factory=list)
    _verbatim: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "code", "pre", "annotation", "title"):
            self._verbatim.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                (self.twice if value in self.ids else self.ids).add(value)
            elif (tag, name) in FOLLOWED and value is not None:
                self.followed.append(value)
            elif (tag, name) in LOADED and value is not None:
                several = [part.split()[0] for part in value.split(",") if part.strip()]
                self.loaded += several if name == "srcset" else [value]
            elif name == "style" and value:
                self.loaded += [first or second for first, second in IN_CSS.findall(value)]

    def handle_endtag(self, tag: str) -> None:
        if self._verbatim and self._verbatim[-1] == tag:
            self._verbatim.pop()

    def handle_data(self, data: str) -> None:
        if not self._verbatim and RAW_TEX.search(data):
            self.tex.append(data)
        elif self._verbatim[-1:] == ["style"]:
            self.loaded += [first or second for first, second in IN_CSS.findall(data)]


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    page.close()
    return page


def _loads(site: Path, file: Path, target: str) -> str:
    """Why loading `target` from `file` goes wrong; empty when it does not."""
    if target.startswith(("data:", "#")):
        return ""
    if urlsplit(target).scheme or target.startswith("//"):
        return f"loads {target} from elsewhere"
    return "" if _file(site, file, target) else f"loads {target}, which is not there"


def _leads(site: Path, file: Path, target: str, pages: dict[Path, _Page]) -> str:
    """Why following `target` from `file` goes wrong; empty when it does not, and for other machines' pages."""
    if urlsplit(target).scheme or target.startswith("//"):
        return ""
    there = _file(site, file, target)
    if there is None:
        return f"links to {target}, which is not there"
    anchor = unquote(urldefrag(target).fragment)
    if anchor and there in pages and anchor not in pages[there].ids:
        return f"links to {target}, an anchor that is not there"
    return ""


def _file(site: Path, file: Path, target: str) -> Path | None:
    """The file of the site that `target` means in `file`; None when there is none, or it lies outside."""
    here = f"/{file.relative_to(site).as_posix()}"
    if target.startswith("/"):
        return None  # from disk that is the root of the disk
    climbs = sum(1 if part == ".." else 0 for part in urlsplit(target).path.split("/"))
    if climbs > here.count("/") - 1:
        return None
    path = site / unquote(urlsplit(urljoin(here, target)).path).lstrip("/")
    return path if path.is_file() else None
