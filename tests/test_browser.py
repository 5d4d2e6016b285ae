"""The book's site in a real browser, opened from disk: drawn, quiet, searchable, in the dark and on a phone."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from built_site import built_site
from playwright.sync_api import Browser, BrowserContext, FloatRect, Locator, Page, Route, expect, sync_playwright

from labstaff.site.mathematics import render

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
PHONE_WIDTH = 360
TOO_WIDE = """() => [...document.querySelectorAll("article *")]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  // What scrolls in a frame of its own, and what KaTeX clips or keeps for screen readers.
  .filter(e => !e.parentElement.closest(".table-wrapper, div.math, pre, .katex svg, .katex-mathml"))
  .map(e => e.outerHTML.slice(0, 80))"""
"""What a reader would have to scroll sideways to see; the page itself hides how wide it is."""

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no browser here: install Debian's package chromium")


@dataclass
class Watched:
    """A browser window, and what it asked other machines for and complained of."""

    page: Page
    site: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, name: str) -> Page:
        """Show a page of the site, straight from disk."""
        path, _, query = name.partition("?")
        self.page.goto((self.site / path).as_uri() + (f"?{query}" if query else ""))
        return self.page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def watch(context: BrowserContext, site: Path) -> Watched:
    """Refuse and note every request that does not go to the disk."""
    watched = Watched(context.new_page(), site)

    def refuse(route: Route) -> None:
        watched.requests.append(route.request.url)
        route.abort()

    context.route(lambda url: not url.startswith(("file:", "data:")), refuse)
    watched.page.on("console", lambda said: watched.complaints.append(said.text) if said.type == "error" else None)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("requestfailed", lambda request: watched.complaints.append(f"failed: {request.url}"))
    return watched


@pytest.fixture
def window(browser: Browser, site: Path) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    yield watch(context, site)
    context.close()


def test_every_page_is_quiet_and_fits_a_phone(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": PHONE_WIDTH, "height": 740}, is_mobile=True)
    watched = watch(context, site)
    problems = []
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    for name in pages:
        page = watched.open(name)
        problems += [f"{name}: too wide: {element}" for element in page.evaluate(TOO_WIDE)]
        broken = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)")
        problems += [f"{name}: does not show {image}" for image in broken]
    context.close()
    assert len(pages) > 15
    assert problems == []
    assert watched.requests == []
    assert watched.complaints == []


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


FACES_WANTED = """() => [...document.querySelectorAll(".katex-html *")]
  .filter(e => [...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(e => getComputedStyle(e))
  .map(style => `${style.fontFamily.split(",")[0]} ${style.fontWeight} ${style.fontStyle}`)"""
FACES_THERE = "() => [...document.fonts].map(face => `${face.family} ${face.weight} ${face.style}`)"


def missing_faces(page: Page) -> set[str]:
    """The faces that a page's formulas ask for and that its style sheets do not have."""
    return set(page.evaluate(FACES_WANTED)) - set(page.evaluate(FACES_THERE))


def test_every_formula_finds_its_face(window: Watched, site: Path) -> None:
    pages = pages_with(site, 'class="katex"')
    assert len(pages) > 5
    missing = {name: faces for name in pages if (faces := missing_faces(window.open(name)))}
    assert missing == {}, "labstaff/site/katex/README.md says where they are"


def test_a_missing_face_is_named(window: Watched, site: Path) -> None:
    page = window.open("03_online_softmax.html")
    formula = render(r"\mathbb{R} + \mathfrak{g} + x", display=False)
    page.evaluate("html => document.querySelector('article p').innerHTML = html", formula)
    assert missing_faces(page) == {"KaTeX_AMS 400 normal", "KaTeX_Fraktur 400 normal"}


def test_search_finds_a_word_from_disk_and_quotes_it(window: Watched) -> None:
    page = window.open("index.html")
    box = page.locator("input[name=q]").first
    box.fill("rescaling")
    box.press("Enter")
    expect(page.locator("#search-results p").first).to_contain_text("pages matching")
    found = page.locator("#search-results ul.search > li")
    assert "03_online_softmax.html" in " ".join(link.get_attribute("href") or "" for link in found.locator("a").all())
    for result in found.all():
        expect(result.locator("p.context")).to_contain_text(re.compile("rescal", re.IGNORECASE))
    found.locator("a").first.click()
    expect(page.locator("article .highlighted").first).to_have_text(re.compile("rescaling", re.IGNORECASE))
    assert window.requests == []
    assert window.complaints == []


def test_each_heading_found_is_quoted_from_its_own_section(window: Watched) -> None:
    window.page.on("console", lambda said: window.complaints.append(said.text) if said.type == "warning" else None)
    page = window.open("search.html?q=conventions")
    expect(page.locator("#search-results p").first).to_contain_text("pages matching")
    found = page.locator("#search-results li.kind-title")
    assert found.count() > 3
    for result in found.all():
        expect(result.locator("p.context")).to_contain_text(re.compile("conventions", re.IGNORECASE))
    assert window.complaints == []


def test_marks_of_found_words_stay_within_the_text(window: Watched, site: Path) -> None:
    icons = window.open("index.html").locator("svg title").all_text_contents()
    assert icons
    asked = " ".join(["attention", *icons]).lower().replace(" ", "+")
    for name in pages_with(site, 'id="furo-main-content"'):
        if name == "search.html":
            continue
        page = window.open(f"{name}?highlight={asked}")
        page.locator(".highlighted").first.wait_for(state="attached")
        assert page.locator(".highlighted:not(article *)").count() == 0, name
    assert window.complaints == []


def test_nothing_is_found_for_no_word(window: Watched) -> None:
    page = window.open("search.html?q=xyzzyx")
    expect(page.locator("#search-results")).to_contain_text("did not match")
    assert page.locator("#search-results li").count() == 0


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


def test_the_tile_loop_runs_within_the_book(window: Watched) -> None:
    page = window.open("tile_loop.html")
    widget = page.locator("#tile-loop")
    widget.get_by_role("button", name="Play", exact=True).click()
    expect(widget).to_contain_text(re.compile(r"[1-9]\d* / \d+"))
    page.get_by_role("link", name="N = 8, d = 4, tiles of 4 × 2, keys outside, no mask").click()
    expect(widget.get_by_label("keys outside")).to_be_checked()
    expect(widget.get_by_label("causal mask")).not_to_be_checked()
    assert window.requests == []
    assert window.complaints == []


@pytest.mark.parametrize("height", [900, 1000])
def test_a_desktop_shows_the_tile_loop_without_scrolling(window: Watched, height: int) -> None:
    window.page.set_viewport_size({"width": 1280, "height": height})
    page = window.open("tile_loop.html")
    page.keyboard.press("Shift+ArrowRight")  # nothing has the focus
    expect(page.locator('[data-out="place"]')).to_have_text("4 / 38")
    parts = [".tl-matrix svg", ".pl-player", ".tl-sram", ".tl-sram-list"]
    rows = [page.locator(f'[data-row="{name}"]') for name in ("m", "alpha", "l")]
    boxes = [part.bounding_box() for part in [*map(page.locator, parts), *rows]]
    assert page.evaluate("scrollY") == 0
    assert min(box["y"] for box in boxes) >= 0
    assert max(box["y"] + box["height"] for box in boxes) <= height
    assert [(a, b) for a, b in combinations(boxes, 2) if overlap(a, b)] == []


def test_on_a_phone_the_player_covers_nothing_that_it_plays(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = watch(context, site).open("tile_loop.html")
    header = page.locator("header.mobile-header").bounding_box()["height"]
    picture_whole = numbers_whole = False
    for top in range(0, 1500, 50):
        page.evaluate("top => scrollTo({top, behavior: 'instant'})", top)
        parts = (".pl-player", ".tl-matrix svg", ".tl-bar", ".tl-numbers")
        player, matrix, bar, numbers = (page.locator(part).bounding_box() for part in parts)
        assert not overlap(player, matrix), top
        assert not overlap(player, bar), top
        seen = [box["y"] >= header and box["y"] + box["height"] <= 844 for box in (player, matrix, bar, numbers)]
        picture_whole |= all(seen[:3])
        numbers_whole |= seen[0] and seen[3] and not overlap(player, numbers)
    assert picture_whole, "matrix, SRAM and player are never in view together"
    assert numbers_whole, "a row's numbers and the player are never in view together"
    context.close()


def overlap(a: FloatRect, b: FloatRect) -> bool:
    """Whether two boxes have a point in common."""
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in (("x", "width"), ("y", "height")))


def test_the_way_through_the_book(window: Watched) -> None:
    page = window.open("01_gpu_memory_hierarchy.html")
    page.get_by_role("link", name="Next").first.click()
    expect(page.locator("article h1")).to_contain_text("Measuring memory")
    page.locator("article").get_by_role("link", name="Lab 02", exact=True).first.click()
    expect(page.locator("article h1")).to_contain_text("Lab 02")
    page.locator("article").get_by_role("link", name="Measuring memory").first.click()
    expect(page.locator("article h1")).to_contain_text("Measuring memory")


def test_answers_are_folded_until_asked_for(window: Watched) -> None:
    page = window.open("05_flash_attention.html")
    answer = page.locator("details").first
    inside = answer.locator("p, .math").last
    expect(inside).to_be_hidden()
    answer.locator("summary").click()
    expect(inside).to_be_visible()
    assert answer.locator(".katex").count() > 0


FRAMES = """() => [...document.querySelectorAll(".table-wrapper")].map(frame => ({
  hidden: frame.scrollWidth - frame.clientWidth,
  named: frame.querySelector("th").innerText,
  signs: [...frame.previousElementSibling.children].filter(sign => sign.checkVisibility({visibilityProperty: true}))
    .map(sign => sign.innerText),
}))"""


def test_a_table_that_goes_on_says_so(window: Watched, site: Path) -> None:
    going_on = dict.fromkeys((1280, 768, PHONE_WIDTH), 0)
    for path in pages_with(site, "<table"):
        page = window.open(path)
        for width in going_on:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            for frame in page.evaluate(FRAMES):
                assert frame["signs"] == (["more columns →"] if frame["hidden"] > 1 else []), (path, width, frame)
                going_on[width] += frame["hidden"] > 1
    assert going_on[PHONE_WIDTH] > 5


def pages_with(site: Path, markup: str = "") -> list[str]:
    """The pages of the site that hold some text or markup."""
    pages = sorted(path for path in site.rglob("*.html") if markup in path.read_text(encoding="utf-8"))
    return [path.relative_to(site).as_posix() for path in pages]


def test_a_table_says_on_which_side_it_goes_on(window: Watched) -> None:
    window.page.set_viewport_size({"width": PHONE_WIDTH, "height": 740})
    page = window.open("08_sliding_windows.html")
    frame = page.locator(".table-wrapper", has=page.locator("th", has_text="workspace"))
    signs = frame.locator("xpath=preceding-sibling::*[1]").locator("span")
    expect(signs.first).to_be_hidden()
    expect(signs.last).to_be_visible()
    frame.focus()
    frame.evaluate("frame => frame.scrollTo(frame.scrollWidth, 0)")
    expect(signs.first).to_be_visible()
    expect(signs.last).to_be_hidden()


def test_a_desktop_shows_the_column_that_decides(window: Watched) -> None:
    window.page.set_viewport_size({"width": 1280, "height": 900})
    page = window.open("08_sliding_windows.html")
    frame = page.locator(".table-wrapper", has=page.locator("th", has_text="workspace"))
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


PAPER_WIDTH = 718
"""A4 less the margins that browsers leave, in CSS pixels."""
UNFIT_FOR_PAPER = """width => [...document.querySelectorAll("body *")].filter(e => e.checkVisibility()).filter(e => {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (!box.width || !box.height || style.clip !== "auto") return false;
  const afloat = ["fixed", "sticky"].includes(style.position);
  return afloat || (e.matches("table, pre, img, p") && box.right > width + 1);
}).map(e => e.outerHTML.slice(0, 80))"""


def test_every_page_prints_whole(window: Watched, site: Path) -> None:
    page = window.page
    page.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    page.emulate_media(media="print")
    problems, folded = [], 0
    for name in pages_with(site):
        window.open(name)
        problems += [f"{name}: {element}" for element in page.evaluate(UNFIT_FOR_PAPER, PAPER_WIDTH)]
        answers = page.locator("article details:not(.tl-setting *) > :not(summary)")
        folded += answers.count()
        problems += [f"{name}: folded: {text[:60]}" for text in hidden_texts(answers)]
    assert folded > 20
    assert problems == []


def hidden_texts(elements: Locator) -> list[str]:
    """The texts of those elements that are not to be seen."""
    unseen = "all => all.filter(e => !e.checkVisibility({contentVisibilityAuto: true})).map(e => e.textContent)"
    texts: list[str] = elements.evaluate_all(unseen)
    return texts
