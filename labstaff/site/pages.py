"""Sphinx extension: the navigation, chapter numbers, and the scripts of the interactive pages."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from labstaff.site import FRONT

NAVIGATION: dict[str, tuple[str, ...]] = {
    "The course": ("docs/course_map", "docs/self_study"),
    "Chapters": ("docs/[0-9]*",),
    "To play with": ("docs/tile_loop", "docs/cache_blocks", "docs/ring", "docs/trace"),
    "Labs": ("labs/*/README",),
    "Look up": ("docs/glossary", "docs/references"),
    "Instructors": ("docs/instructors", "what_goes_wrong", "what_goes_wrong/*"),
}
"""Captions, and the pages below them as far as they are there. Sphinx warns of a page that none names."""
CHAPTER = re.compile(r"docs/(\d\d)_\w+")
TAG = re.compile(r'<(?:script src|link rel="stylesheet" href)="[^"]+">(?:</script>)?')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", edit_source)
    app.connect("html-page-context", edit_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def edit_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the front page, since a code host would show it as code, and a chapter's number."""
    if name == FRONT:
        for caption, patterns in NAVIGATION.items():
            pages = [page for pattern in patterns for page in sorted(fnmatch.filter(app.env.found_docs, pattern))]
            entries = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n" if pages else ""
    if chapter := CHAPTER.fullmatch(name):
        source[0] = re.sub("^# ", f"# {int(chapter[1])}. ", source[0], count=1, flags=re.MULTILINE)


def edit_page(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Add the interactive pages' scripts, and let long names in the contents break."""
    if "body" not in context:
        return
    # Search marks the words it found in div.body; in a theme without one it marks the menus too.
    context["body"] = f'<div class="body">{context["body"]}</div>'
    context["toc"] = re.sub(r"_(?=[^<>]*</span>)", "_<wbr>", context["toc"])
    folder = Path("docs", "_static", Path(name).name)
    alone = Path(app.srcdir, folder, "index.html")
    if alone.is_file():  # the page without the site names its scripts, in order
        tags = "".join(TAG.findall(alone.read_text(encoding="utf-8")))
        context["body"] += re.sub(r'(src|href)="', rf'\1="_static/{folder.name}/', tags)
