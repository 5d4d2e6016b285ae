"""The book's site in a real browser, opened from disk: drawn, quiet, searchable, in the dark and on a phone."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from built_site import built_site
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

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


def test_search_finds_a_word_from_disk(window: Watched) -> None:
    page = window.open("index.html")
    box = page.locator("input[name=q]").first
    box.fill("rescaling")
    box.press("Enter")
    found = page.locator("#search-results ul.search li a")
    expect(found.first).to_be_visible()
    assert "03_online_softmax.html" in " ".join(link.get_attribute("href") or "" for link in found.all())
    found.first.click()
    expect(page.locator("article h1")).to_be_visible()
    assert window.requests == []
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


def brightness(page: Page, selector: str) -> float:
    """The brightness, from 0 to 255, that most pixels of an element's picture have."""
    from PIL import Image

    grey = Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("L")
    return float(max(range(256), key=grey.histogram().__getitem__))


def test_the_tile_loop_runs_within_the_book(window: Watched) -> None:
    page = window.open("tile_loop.html")
    widget = page.locator("#tile-loop")
    page.set_viewport_size({"width": 1280, "height": 800})
    widget.get_by_role("button", name="Play", exact=True).click()
    expect(widget).to_contain_text(re.compile(r"[1-9]\d* / \d+"))
    page.wait_for_function(  # the page may scroll smoothly: it must not hide what it plays
        """() => {
          const [matrix, player] = ["matrix", "player"].map(
            (part) => document.querySelector(`.tl-${part}`).getBoundingClientRect());
          return matrix.top >= 0 && matrix.bottom <= player.top;
        }"""
    )
    page.get_by_role("link", name="N = 8, d = 4, tiles of 4 × 2, keys outside, no mask").click()
    expect(widget.get_by_label("keys outside")).to_be_checked()
    expect(widget.get_by_label("causal mask")).not_to_be_checked()
    assert window.requests == []
    assert window.complaints == []


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
