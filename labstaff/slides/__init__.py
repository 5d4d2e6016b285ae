"""Slides for each chapter, derived from it: reveal.js through Sphinx, offline, printable with `?print-pdf`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from labkit.labs.catalog import find_labs
from labkit.labs.manifest import Lab
from labstaff.site import SiteError, run_sphinx

HERE = Path(__file__).resolve().parent
MARK = Path("_static", "slides.css")
"""A folder with this file holds slides and may be replaced."""
UNUSED = ("css", "plugin", "dist/theme", "dist/reveal.esm.js", "dist/reveal.esm.js.map", "dist/reveal.js.map")
"""Of reveal.js: some of its themes load fonts from the net."""
INDEX = """\
# Attention Labs: slides

Arrow keys turn pages, `F` fills the screen, `Esc` shows all slides of a chapter. To print a chapter, or to save it as a
PDF file, add `?print-pdf` to its address and print from the browser.

```{{toctree}}
:maxdepth: 1

{}
```
"""


def build_slides(root: Path, out: Path) -> list[str]:
    """Write a deck for each chapter of the repository `root` to the folder `out`; returns the chapters' names.

    `out/index.html` opens in a browser from disk. A chapter whose lab is a draft has no deck.

    Raises:
        SiteError: `out` holds something else than slides, or Sphinx warns. `out` is then unchanged.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise SiteError(f"{out} exists already and does not hold slides: name another folder")
    drafts = {Path(page).name for lab in find_labs(root) if lab.draft for page in lab.read}
    chapters = [file for file in sorted((root / "docs").glob("[0-9]*.md")) if file.name not in drafts]
    with tempfile.TemporaryDirectory() as scratch:
        source, slides = Path(scratch, "source"), Path(scratch, "slides")
        shutil.copytree(root / "docs" / "figures", source / "figures", ignore=shutil.ignore_patterns("make", "*.json"))
        for file in chapters:
            shutil.copyfile(file, source / file.name)
        names = [file.stem for file in chapters]
        (source / "index.md").write_text(INDEX.format("\n".join(names)), encoding="utf-8")
        run_sphinx(HERE, "revealjs", source, slides)
        for name in UNUSED:
            path = slides / "_static" / "revealjs" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if out.exists():
            shutil.rmtree(out)
        shutil.move(slides, out)
    return names


def lab_of(chapter: str) -> Lab | None:
    """The lab for which the chapter, a name like `05_flash_attention`, is to be read."""
    return next((lab for lab in find_labs() if f"docs/{chapter}.md" in lab.read), None)
