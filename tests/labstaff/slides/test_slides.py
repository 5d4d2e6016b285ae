"""`lab slides`: a deck for each chapter, which needs no network, fits its slides and prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.labs.catalog import ROOT, find_labs
from labstaff.site import SiteError
from labstaff.slides import build_slides

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = re.compile(r"""(?:\b(?:src|href)=|url\(|@import\s)\s*["']?(?:https?:)?//""")
PICTURE = re.compile(r'<img [^>]*src="([^"]+)"')
OUTSIDE = """() => [...Reveal.getCurrentSlide().querySelectorAll(":not(.katex-mathml, .katex-mathml *, svg *)")]
  .map(e => [e, e.getBoundingClientRect()])
  .filter(([e, box]) => box.width && (box.bottom > innerHeight || box.right > innerWidth || box.left < 0))
  .map(([e]) => e.outerHTML.slice(0, 120))"""
BROKEN = """() => [
  ...[...document.images].filter(image => !image.complete || !image.naturalWidth),
  ...document.querySelectorAll(".katex-error, span.math:not(:has(.katex)), div.math:not(:has(.katex))"),
].map(e => e.outerHTML.slice(0, 120))"""


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SiteError, match="does not hold slides"):
        build_slides(ROOT, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture(scope="module")
def decks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("slides") / "out"
    build_slides(ROOT, out)
    return out


@pytest.mark.slow
def test_every_chapter_has_a_deck(decks: Path) -> None:
    drafts = {Path(page).stem for lab in find_labs() if lab.draft for page in lab.read}
    chapters = {file.stem for file in (ROOT / "docs").glob("[0-9]*.md")} - drafts
    assert {file.stem for file in decks.glob("*.html")} == chapters | {"index"}
    shown: set[str] = set()
    for name in chapters:
        html = (decks / f"{name}.html").read_text(encoding="utf-8")
        titles = re.findall(r"<h[12]>(.*?)</h[12]>", html)
        assert 12 <= len(titles) <= 20, f"{name}: {titles}"
        assert titles[1:3] == ["The question", "The answer"], name
        assert {"Takeaways", "What to try"} <= set(titles), name
        for picture in PICTURE.findall(html):
            assert (decks / picture).is_file(), f"{name}: {picture}"
            shown.add(Path(picture).name)
        figures = re.findall(r"!\[[^]]*\]\(figures/([^)]+)\)", (ROOT / "docs" / f"{name}.md").read_text("utf-8"))
        assert len(shown & set(figures)) >= min(2, len(figures)), f"{name} shows too few of {figures}"


@pytest.mark.slow
def test_nothing_comes_from_the_net(decks: Path) -> None:
    for file in [*decks.rglob("*.html"), *decks.rglob("*.css")]:
        found = ADDRESS.findall(file.read_text(encoding="utf-8"))
        assert not found, f"{file.relative_to(decks)} loads {found}"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    yield context.new_page()
    context.close()


@pytest.mark.slow
@pytest.mark.browser
def test_nothing_runs_out_of_a_slide_or_off_its_paper(page: Page, decks: Path) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.context.route(lambda url: not url.startswith(("file:", "data:")), lambda route: route.abort())
    for file in sorted(decks.glob("*.html")):
        page.goto(file.as_uri())
        page.wait_for_function("() => Reveal.isReady()")
        n_slides = page.evaluate("Reveal.getTotalSlides()")
        for at in range(n_slides):
            page.evaluate(f"Reveal.slide({at}, 0, 9)")
            assert page.evaluate(OUTSIDE) == [], f"{file.name}#/{at}"
        assert page.evaluate(BROKEN) == [], file.name
    assert problems == []
    page.goto(f"{(decks / '05_flash_attention.html').as_uri()}?print-pdf")
    page.wait_for_selector(".pdf-page")
    assert page.locator(".pdf-page").count() > 12
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    assert pdf.count(b"/MediaBox") == page.locator(".pdf-page").count(), "a slide takes more than a page"
