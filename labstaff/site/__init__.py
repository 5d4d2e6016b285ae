"""Builds the website from docs/ and the labs' handouts with Sphinx; any warning is an error."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from labkit.trace.page import FOLDER as VIEWER_FOLDER
from labkit.trace.page import VIEWER

HERE = Path(__file__).resolve().parent
FRONT = "docs/README"
"""The front page, which a code host shows for the folder docs."""
MARK = "searchindex.js"
"""A folder with this file is a site and may be replaced."""


class SiteError(RuntimeError):
    """Why no site was written: Sphinx's warnings, one a line."""


def build_site(root: Path, out: Path, further: Mapping[str, str] = MappingProxyType({})) -> int:
    """Write the site of the repository `root` to the folder `out`; returns its number of pages.

    `out/index.html` opens in a browser from disk or from any server. `further` are pages without a file: Markdown,
    by name.

    Raises:
        SiteError: `out` holds something else than a site, or Sphinx warns: of a link, an anchor, an image, a page that
            is missing from the navigation. `out` is then unchanged.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(f"{out} is there already and is not a site: name another folder")
    with tempfile.TemporaryDirectory() as scratch:
        source, site = Path(scratch, "source"), Path(scratch, "site")
        _gather(root, source, further)
        _run_sphinx(source, site)
        shutil.copytree(source / "docs" / "_static", site / "docs" / "_static", dirs_exist_ok=True)
        (site / "labkit" / "trace").mkdir(parents=True)
        for name in VIEWER:  # the traces in docs/_static load it from here
            shutil.copyfile(VIEWER_FOLDER / name, site / "labkit" / "trace" / name)
        (site / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={FRONT}.html">', encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        shutil.move(site, out)
    return len(list(out.rglob("*.html")))


def _gather(root: Path, source: Path, further: Mapping[str, str]) -> None:
    """Copy what the pages are made from; folders stay side by side, so links mean the same as on a code host."""
    shutil.copytree(root / "docs", source / "docs")
    (source / "docs" / "_static").mkdir(exist_ok=True)
    if (root / "labs").is_dir():
        shutil.copytree(root / "labs", source / "labs", ignore=shutil.ignore_patterns("results", "__pycache__", ".*"))
    for name, text in further.items():
        page = source / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def _run_sphinx(source: Path, site: Path) -> None:
    """Build the HTML; raises SiteError with paths as in the repository."""
    from sphinx.cmd.build import build_main

    messages = io.StringIO()
    strict = ["-W", "--keep-going", "-n", "-q", "--no-color"]
    with contextlib.redirect_stderr(messages):
        failed = build_main([*strict, "-c", str(HERE), "-d", str(source.parent / "doctrees"), str(source), str(site)])
    if failed:
        raise SiteError(messages.getvalue().replace(f"{source.resolve()}/", "").strip())
