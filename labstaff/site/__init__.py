"""Builds the website from docs/ and the labs' handouts with Sphinx; any warning is an error."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from labkit.labs.catalog import find_labs
from labkit.labs.manifest import Lab
from labkit.trace.page import FOLDER as VIEWER_FOLDER
from labkit.trace.page import VIEWER
from labstaff.release.choice import FOR_INSTRUCTORS, INSTRUCTORS_PAGES, page_for

HERE = Path(__file__).resolve().parent
FRONT = "docs/README"
"""The front page, which a code host shows for the folder docs."""
MARK = "searchindex.js"
"""A folder with this file is a site and may be replaced."""


def citation(root: Path = HERE.parents[1]) -> dict[str, str]:
    """The single-line entries of CITATION.cff, as `repository_code`; empty where the file is missing.

    Every page shows the authors and the licence, and the repository if the file names one.
    """
    file = root / "CITATION.cff"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    lines = re.findall(r"^(?:  - )?([\w-]+): +(.+)$", text, re.MULTILINE)
    return {name.replace("-", "_"): value.strip().strip("\"'") for name, value in lines}


class SiteError(RuntimeError):
    """The reason why no site was written: Sphinx's warnings, one per line."""


def build_site(
    root: Path,
    out: Path,
    for_instructors: Mapping[str, str] = MappingProxyType({}),
    labs: Sequence[Lab] = (),
    url: str = "",
) -> int:
    """Write the site of the repository `root` to the folder `out`; returns its number of pages.

    `out/index.html` opens in a browser from disk or from any server.

    Args:
        root: the repository, or a students' tree.
        out: the folder.
        for_instructors: pages without a file, Markdown by name. Without any, the site is for students: it has no
            page for instructors.
        labs: whose handouts are in the site; of all labs in `root` when empty.
        url: where the site will be, "https://…". Only with it are there a site map, a page for addresses that are not
            there, and images for links to the pages.

    Raises:
        SiteError: `out` holds something else than a site, `url` is no address, or Sphinx warns: of a link, an anchor,
            an image, a page that is missing from the navigation. `out` is then unchanged.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(f"{out} exists already and is not a site: name another folder")
    if url and not url.startswith(("https://", "http://")):
        raise SiteError(f"{url} is no address: begin it with https://")
    with tempfile.TemporaryDirectory() as scratch:
        source, site = Path(scratch, "source"), Path(scratch, "site")
        _gather(root, source, for_instructors, labs or find_labs(root))
        run_sphinx(HERE, "html", source, site, url)
        shutil.copytree(source / "docs" / "_static", site / "docs" / "_static", dirs_exist_ok=True)
        (site / "labkit" / "trace").mkdir(parents=True)
        for name in VIEWER:  # the traces in docs/_static load it from here
            shutil.copyfile(VIEWER_FOLDER / name, site / "labkit" / "trace" / name)
        if out.exists():
            shutil.rmtree(out)
        shutil.move(site, out)
    return len(list(out.rglob("*.html")))


def _gather(root: Path, source: Path, for_instructors: Mapping[str, str], labs: Sequence[Lab]) -> None:
    """Copy the pages' sources; folders keep their relative positions, so links work as on a code host."""
    shutil.copytree(root / "docs", source / "docs")
    (source / "docs" / "_static").mkdir(exist_ok=True)
    for lab in labs:
        unwanted = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(lab.folder, source / "labs" / lab.folder.name, ignore=unwanted)
    if not for_instructors:
        for name in INSTRUCTORS_PAGES:
            (source / name).unlink(missing_ok=True)
    for page in [*source.glob("docs/*.md"), *source.glob("labs/*/*.md")]:
        text = page.read_text(encoding="utf-8")
        text = text if for_instructors else FOR_INSTRUCTORS.sub("", text)
        page.write_text(page_for(str(page.relative_to(source)), text, labs), encoding="utf-8")
    for name, text in for_instructors.items():
        page = source / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def run_sphinx(settings: Path, builder: str, source: Path, site: Path, url: str = "") -> None:
    """Build HTML with the `conf.py` in `settings`, for the address `url` if it has one.

    Raises:
        SiteError: Sphinx warns; paths are as in the repository.
    """
    from sphinx.cmd.build import build_main

    messages = io.StringIO()
    options = ["-W", "--keep-going", "-n", "-q", "--no-color"]
    if url:
        options += ["-D", f"html_baseurl={url.rstrip('/')}/"]
    with contextlib.redirect_stderr(messages):
        folders = ["-d", str(source.parent / "doctrees"), str(source), str(site)]
        failed = build_main([*options, "-b", builder, "-c", str(settings), *folders])
    if failed:
        raise SiteError(messages.getvalue().replace(f"{source.resolve()}/", "").strip())
