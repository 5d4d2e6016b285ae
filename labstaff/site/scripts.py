"""Gives a page of docs/ the scripts and style sheets that lie in docs/_static under its name.

`docs/_static/PAGE/index.html` shows them without a site; which there are, and their order, is taken from it. What
several pages share, as the player of steps, lies in a folder of its own and is named as `../player/player.js`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

STATIC = "_static"
SCRIPT = re.compile(r"<script\s+src=\"([^\"]+)\"")
SHEET = re.compile(r"<link\s+rel=\"stylesheet\"\s+href=\"([^\"]+)\"")


def setup(app: Sphinx) -> dict[str, Any]:
    """Have docs/_static copied, and each page's own files named in its head."""
    app.connect("config-inited", _copy)
    app.connect("html-page-context", _name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _copy(app: Sphinx, config: Config) -> None:
    if (folder := Path(app.srcdir, STATIC)).is_dir():
        config.html_static_path.append(str(folder))


def _name(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    alone = Path(app.srcdir, STATIC, page, "index.html")
    if not alone.is_file():
        return
    text = alone.read_text(encoding="utf-8")
    for sheet in SHEET.findall(text):
        app.add_css_file(posixpath.normpath(f"{page}/{sheet}"))  # ../ leads to what several pages share
    for script in SCRIPT.findall(text):
        app.add_js_file(
            posixpath.normpath(f"{page}/{script}"), loading_method="defer"
        )  # in this order, once all is there
