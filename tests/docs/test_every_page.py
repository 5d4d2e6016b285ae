"""Every page of the book's site in a real browser, from disk: quiet, and whole on a phone, a desktop and paper."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from labstaff.site.mathematics import render
from tests.labstaff.site.built_site import Watched, built_site, watch

PHONE_WIDTH = 360
WIDTHS = (PHONE_WIDTH, 768, 1280)
PAPER_WIDTH = 718
"""A4 less the margins that browsers leave, in CSS pixels."""
UNFIT_FOR_PAPER = """width => [...document.querySelectorAll("body *")].filter(e => e.checkVisibility()).filter(e => {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (!box.width || !box.height || style.clip !== "auto") return false;
  const afloat = ["fixed", "sticky"].includes(style.position);
  return afloat || (e.matches("table, pre, img, p") && box.right > width + 1);
}).map(e => e.outerHTML.slice(0, 80))"""
TOO_WIDE = """() => [...document.querySelectorAll("article *")]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  // What scrolls in a frame of its own, and what KaTeX clips or keeps for screen readers.
  .filter(e => !e.parentElement.closest(".table-wrapper, div.math, pre, .katex svg, .katex-mathml"))
  .map(e => e.outerHTML.slice(0, 80))"""
"""What a reader would have to scroll sideways to see; the page itself hides how wide it is."""
BROKEN_NAMES = """() => [...document.querySelectorAll("td code")]
  .filter(e => /^\\w+$/.test(e.innerText) && e.getClientRects().length > 1).map(e => e.innerText)"""
"""Names in tables that go on in another line."""

UNSEEN = """() => [...document.querySelectorAll("article img")]
  .filter(image => !image.complete || !image.naturalWidth).map(image => image.src)"""
STILL_FOLDED = """() => [...document.querySelectorAll("article details:not(.tl-setting *) > :not(summary)")]
  .filter(e => !e.checkVisibility({contentVisibilityAuto: true})).map(e => e.textContent.slice(0, 60))"""
FRAMES = """() => [...document.querySelectorAll(".table-wrapper")].map(frame => ({
  hidden: frame.scrollWidth - frame.clientWidth,
  named: frame.querySelector("th").innerText,
  signs: [...frame.previousElementSibling.children].filter(sign => sign.checkVisibility({visibilityProperty: true}))
    .map(sign => sign.innerText),
}))"""
FACES_WANTED = """() => [...document.querySelectorAll(".katex-html *")]
  .filter(e => [...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(e => getComputedStyle(e))
  .map(style => `${style.fontFamily.split(",")[0]} ${style.fontWeight} ${style.fontStyle}`)"""
FACES_THERE = "() => [...document.fonts].map(face => `${face.family} ${face.weight} ${face.style}`)"

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture
def window(browser: Browser, site: Path) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    yield watch(context, site)
    context.close()


@dataclass
class Seen:
    """What one page shows in narrow and wide windows and on paper."""

    too_wide: list[str] = field(default_factory=list)
    broken_names: list[str] = field(default_factory=list)
    broken_images: list[str] = field(default_factory=list)
    frames: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    missing_faces: set[str] = field(default_factory=set)
    answers: int = 0
    folded: list[str] = field(default_factory=list)
    unfit_for_paper: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def walk(browser: Browser, site: Path) -> tuple[dict[str, Seen], Watched]:
    """Every page, opened once and looked at from all sides, and what the browser said meanwhile."""
    context = browser.new_context(viewport={"width": PHONE_WIDTH, "height": 740}, is_mobile=True)
    watched = watch(context, site)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    seen = {name: look(watched.open(name)) for name in pages}
    context.close()
    assert len(pages) > 15
    return seen, watched


def look(page: Page) -> Seen:
    """See one page in each width, and then on paper."""
    seen = Seen()
    page.emulate_media(media="screen")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 740})
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if width == PHONE_WIDTH:
            seen.too_wide = page.evaluate(TOO_WIDE)
            seen.broken_names = page.evaluate(BROKEN_NAMES)
        seen.frames[width] = page.evaluate(FRAMES)
    seen.broken_images = page.evaluate(UNSEEN)
    seen.missing_faces = missing_faces(page)
    page.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    page.emulate_media(media="print")
    seen.answers = page.locator("article details").count()
    seen.folded = page.evaluate(STILL_FOLDED)
    seen.unfit_for_paper = page.evaluate(UNFIT_FOR_PAPER, PAPER_WIDTH)
    return seen


def missing_faces(page: Page) -> set[str]:
    """The faces that a page's formulas ask for and that its style sheets do not have."""
    return set(page.evaluate(FACES_WANTED)) - set(page.evaluate(FACES_THERE))


Walk = tuple[dict[str, Seen], Watched]


class TestEveryPage:
    def test_is_quiet(self, walk: Walk) -> None:
        _, watched = walk
        assert watched.requests == []
        assert watched.complaints == []

    def test_fits_a_phone_and_shows_its_images(self, walk: Walk) -> None:
        assert {name: page.too_wide for name, page in walk[0].items() if page.too_wide} == {}
        assert {name: page.broken_names for name, page in walk[0].items() if page.broken_names} == {}
        assert {name: page.broken_images for name, page in walk[0].items() if page.broken_images} == {}

    def test_says_where_a_table_goes_on(self, walk: Walk) -> None:
        going_on = 0
        for name, page in walk[0].items():
            for width, frames in page.frames.items():
                for frame in frames:
                    wanted = ["more columns →"] if frame["hidden"] > 1 else []
                    assert frame["signs"] == wanted, (name, width, frame)
                    going_on += bool(wanted)
        assert going_on > 5

    def test_has_a_face_for_every_formula(self, walk: Walk) -> None:
        missing = {name: page.missing_faces for name, page in walk[0].items() if page.missing_faces}
        assert missing == {}, "labstaff/site/katex/README.md says where they are"

    def test_prints_whole(self, walk: Walk) -> None:
        assert sum(page.answers for page in walk[0].values()) > 20
        assert {name: page.folded for name, page in walk[0].items() if page.folded} == {}
        assert {name: page.unfit_for_paper for name, page in walk[0].items() if page.unfit_for_paper} == {}


def test_what_the_watch_would_have_seen(window: Watched, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<article><div style='width: 3000px'></div><pre><b style='padding: 0 1500px'></b></pre></article>"
        "<img src='gone.png'><script src='https://example.org/x.js'></script><script>nothing.here</script>"
    )
    window.site = tmp_path
    window.open("bad.html")
    assert window.requests == ["https://example.org/x.js"]
    told = " ".join(window.complaints)
    assert "nothing is not defined" in told
    assert "gone.png" in told
    assert [element[:4] for element in window.page.evaluate(TOO_WIDE)] == ["<div"]


def test_formulas_are_drawn_with_their_own_fonts(window: Watched) -> None:
    page = window.open("03_online_softmax.html")
    formula = page.locator(".katex-display .katex-html").first
    box = formula.bounding_box()
    assert box is not None
    assert box["width"] > 100
    assert box["height"] > 20
    page.evaluate("document.fonts.ready")
    assert page.evaluate("[...document.fonts].some(f => f.family === 'KaTeX_Math' && f.status === 'loaded')")
    assert page.locator(".katex-error").count() == 0


def test_a_missing_face_is_named(window: Watched, site: Path) -> None:
    page = window.open("03_online_softmax.html")
    formula = render(r"\mathbb{R} + \mathfrak{g} + x", display=False)
    page.evaluate("html => document.querySelector('article p').innerHTML = html", formula)
    assert missing_faces(page) == {"KaTeX_AMS 400 normal", "KaTeX_Fraktur 400 normal"}


def test_a_table_says_on_which_side_it_goes_on(window: Watched) -> None:
    window.page.set_viewport_size({"width": PHONE_WIDTH, "height": 740})
    page = window.open("labs/lab08_sliding_window.html")
    frame = page.locator(".table-wrapper", has=page.locator("th", has_text="mask_building"))
    signs = frame.locator("xpath=preceding-sibling::*[1]").locator("span")
    expect(signs.first).to_be_hidden()
    expect(signs.last).to_be_visible()
    frame.focus()
    frame.evaluate("frame => frame.scrollTo(frame.scrollWidth, 0)")
    expect(signs.first).to_be_visible()
    expect(signs.last).to_be_hidden()


def test_a_desktop_shows_the_column_that_decides(window: Watched) -> None:
    window.page.set_viewport_size({"width": 1280, "height": 900})
    page = window.open("labs/lab08_sliding_window.html")
    frame = page.locator(".table-wrapper", has=page.locator("th", has_text="mask_building"))
    inner, outer = frame.get_by_text("total", exact=True).bounding_box(), frame.bounding_box()
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]


@pytest.mark.parametrize(("name", "shown"), [("index.html", "the question"), ("course_map.html", "points")])
def test_a_phone_reads_a_table_of_words_row_by_row(window: Watched, name: str, shown: str) -> None:
    window.page.set_viewport_size({"width": PHONE_WIDTH, "height": 740})
    page = window.open(name)
    assert [frame for frame in page.evaluate(FRAMES) if frame["hidden"] > 1] == []
    cells = page.locator(f"td[data-column='{shown}']")
    assert cells.count() >= 8
    for cell in cells.all():
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == f'"{shown}"'
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE_WIDTH


@pytest.mark.parametrize("system", ["light", "dark"])
def test_figures_follow_the_themes_switch(browser: Browser, site: Path, system: str) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=system)  # type: ignore[arg-type]
    page = watch(context, site).open("index.html")
    switch = page.locator(".theme-toggle:visible").first
    seen = {}
    for _ in range(3):
        switch.click()
        theme = page.evaluate("document.body.dataset.theme")
        seen[theme] = brightness(page, "article img"), brightness(page, "article h1")
    context.close()
    assert seen.keys() == {"auto", "light", "dark"}
    assert min(seen["light"]) > 200
    assert max(seen["dark"]) < 60
    assert (min(seen["auto"]) > 200) == (system == "light")


def test_figures_on_paper_are_light(window: Watched) -> None:
    page = window.open("index.html")
    page.emulate_media(color_scheme="dark")
    assert brightness(page, "article img") < 60
    page.emulate_media(media="print", color_scheme="dark")
    assert brightness(page, "article img") > 200


def brightness(page: Page, selector: str) -> float:
    """The brightness, from 0 to 255, that most pixels of an element's picture have."""
    from PIL import Image

    grey = Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("L")
    return float(max(range(256), key=grey.histogram().__getitem__))
