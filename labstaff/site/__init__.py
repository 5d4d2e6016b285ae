"""Builds the book's website from docs/ and the labs' handouts: strict, and without a request to any other machine."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from labstaff.site.links import problems

HERE = Path(__file__).resolve().parent
MARK = "searchindex.js"
"""What tells a site from another folder."""


class SiteError(RuntimeError):
    """Why there is no new site: one line for each thing to mend."""


def build_site(house: Path, out: Path, further: Mapping[str, str] = MappingProxyType({})) -> int:
    """Write the site of `house` to the folder `out`; returns its number of pages.

    `out/index.html` opens in a browser as it is, from disk or from any server. A site that lies at `out` is replaced
    once the new one is whole. `further` are pages that no file of the house holds: Markdown, by name.

    Raises:
        SiteError: `out` is something else than a site, or the build has something to complain of: a link, an anchor,
            an image, a formula, a page that nothing leads to. `out` is then as it was.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(f"{out} is there already and is not a site: name another folder")
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch, "site")
        written = Path(scratch, "further")
        for name, text in further.items():
            (written / name).parent.mkdir(parents=True, exist_ok=True)
            (written / f"{name}.md").write_text(text, encoding="utf-8")
        complaints = _sphinx(house.resolve(), fresh, Path(scratch, "doctrees"), written)
        complaints = complaints or problems(fresh)
        if complaints:
            raise SiteError("\n".join(complaints))
        _put_in_place(fresh, out)
    return len(list(out.rglob("*.html")))


def _put_in_place(fresh: Path, out: Path) -> None:
    """Move a whole site to `out`; what lies there goes once there was room for the new one beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        shutil.move(fresh, Path(beside, "new"))
        if out.exists():
            out.rename(Path(beside, "old"))
        Path(beside, "new").rename(out)


def _sphinx(house: Path, out: Path, doctrees: Path, further: Path) -> list[str]:
    """Run Sphinx in this process; returns its warnings and errors, with paths as seen from the house."""
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    said = io.StringIO()
    with patch_docutils(HERE), docutils_namespace(), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # what MyST uses of Sphinx is MyST's affair
        try:
            app = Sphinx(
                house / "docs",
                HERE,
                out,
                doctrees,
                "html",
                confoverrides={"further_pages": str(further)},
                status=None,
                warning=said,
                freshenv=True,
                warningiserror=True,
            )
            app.build(force_all=True)
        except SphinxError as error:
            said.write(f"{error}\n")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()).replace(f"{house}/", "").splitlines()
    return [line for line in lines if line.strip()]
