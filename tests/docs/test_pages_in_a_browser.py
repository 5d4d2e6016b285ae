"""The site in a browser, from disk: every page is whole, search works, and the interactive pages step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag

import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.rings import work
from labstaff.site import build_site
from tests.docs import block_deeds, tile_loop_reference

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PHONE_WIDTH = 360
PROBLEMS = """() => [
  // Wider than the phone, outside of what scrolls in its own frame or is kept for screen readers.
  ...[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .filter(e => !e.parentElement.closest(".table-wrapper, div.math, pre, .katex svg, .katex-mathml")),
  ...[...document.images].filter(image => !image.complete || !image.naturalWidth),
  // TeX that KaTeX cannot parse, and commands that it does not know, which it sets in red.
  ...document.querySelectorAll(".katex-error, [mathcolor='#cc0000']"),
].map(e => e.outerHTML.slice(0, 120))"""
FONTS_WANTED = """() => [...document.querySelectorAll(".katex-html *")]
  .filter(e => [...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(e => getComputedStyle(e))
  .map(style => `${style.fontFamily.split(",")[0]} ${style.fontWeight} ${style.fontStyle}`)"""
FONTS = "() => [...document.fonts].map(face => `${face.family} ${face.weight} ${face.style}`)"
IDS = "() => [...document.querySelectorAll('[id]')].map(e => e.id)"
LINKS = """() => [...document.querySelectorAll("a[href]")].map(a => a.href)
  .filter(href => href.startsWith("file:"))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("book") / "site"
    build_site(ROOT, out)
    return out


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """What goes wrong while a test looks at pages: errors, files that are not there, requests to other machines."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda request: found.append(f"failed: {request.url}"))
    page.context.route(lambda url: not url.startswith(("file:", "data:")), lambda route: route.abort())
    return found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A phone's window."""
    context = browser.new_context(viewport={"width": PHONE_WIDTH, "height": 740})
    yield context.new_page()
    context.close()


def test_every_page_is_whole_on_a_phone(page: Page, complaints: list[str], site: Path) -> None:
    ids: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for file in sorted((site / "docs").glob("*.html")) + sorted(site.glob("labs/*/*.html")):
        page.goto(file.as_uri())
        assert page.evaluate(PROBLEMS) == [], file.name
        missing = set(page.evaluate(FONTS_WANTED)) - set(page.evaluate(FONTS))
        assert not missing, f"{file.name}: labstaff/site/katex/README.md says where the fonts are"
        ids[file.as_uri()] = set(page.evaluate(IDS))
        links[file.name] = set(page.evaluate(LINKS))
    assert len(ids) > 30
    assert complaints == []
    for name, targets in links.items():
        for target in targets:  # an anchor with "=" is an interactive page's setting
            address, anchor = urldefrag(target)
            assert Path(address.removeprefix("file://")).is_file(), f"{name} links to {target}"
            assert "=" in anchor or anchor in ids.get(address, {anchor}) | {""}, f"{name} links to {target}"


def test_search_finds_a_word_from_disk(page: Page, site: Path) -> None:
    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto((site / "index.html").as_uri())
    box = page.locator("input[name=q]").first
    box.fill("rescaling")
    box.press("Enter")
    page.locator("#search-results ul.search a[href*='03_online_softmax.html']").first.click()
    page.locator("article h1", has_text="Online softmax").wait_for()


def tile_loop_at_the_end(page: Page) -> None:
    setting = tile_loop_reference.Setting("queries", 16, 16, 4, 4, 4, 4, causal=True)
    machine = tile_loop_reference.run(setting).machine
    told = [number(shown(page, name)) for name in ("now-loaded", "now-stored", "now-total", "high-water")]
    assert told == [machine.loaded, machine.stored, machine.traffic, machine.high_water]


def cache_blocks_at_the_end(page: Page) -> None:
    deeds = page.evaluate("cacheBlocks.SCENARIOS.tour.deeds")
    want = block_deeds.run(
        deeds, *page.evaluate("[cacheBlocks.SCENARIOS.tour.blocks, cacheBlocks.SCENARIOS.tour.size]")
    )
    counts = want[-1].counts | want[-1].sums
    names = ("owned", "shared", "cached", "blank", "wasted", "copies")
    assert {name: number(shown(page, name)) for name in names} == {name: counts[name] for name in names}


def ring_at_the_end(page: Page) -> None:
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#ring tbody tr").all()]
    pairs = work(16, 4, "contiguous")
    assert [number(row[4]) for row in rows] == pairs.sum(1).tolist()


INTERACTIVE: dict[str, tuple[str, Callable[[Page], None]]] = {
    "tile_loop": ("", tile_loop_at_the_end),
    "cache_blocks": ("#scenario=tour", cache_blocks_at_the_end),
    "ring": ("#ranks=4&each=4&layout=contiguous&causal=1", ring_at_the_end),
}
"""Page → a setting, and what it must show at the end: the numbers of the course's code."""


@pytest.mark.parametrize("name", INTERACTIVE)
def test_an_interactive_page_steps_to_the_course_s_numbers(
    page: Page, complaints: list[str], site: Path, name: str
) -> None:
    setting, at_the_end = INTERACTIVE[name]
    page.goto((site / "docs" / f"{name}.html").as_uri() + setting)
    first, said = steps(page)[0], shown(page, "said")
    page.get_by_role("button", name="A step on", exact=True).click()
    assert steps(page)[0] == first + 1
    assert shown(page, "said") != said, "a step is announced"
    page.get_by_role("button", name="To the end").click()
    here, last = steps(page)
    assert here == last
    at_the_end(page)
    page.wait_for_function(f"location.hash.includes('at={last}')")
    page.reload()
    assert steps(page) == (last, last), "the address keeps the step"
    assert complaints == []


def shown(page: Page, name: str) -> str:
    """The text of one output, also where a phone has no room for it."""
    text: str = page.locator(f'[data-out="{name}"]').text_content() or ""
    return text


def number(text: str) -> int:
    """The first whole number of a text; 2,560 is 2560."""
    digits = text.replace(",", "").split()[0]
    return int(digits)


def steps(page: Page) -> tuple[int, int]:
    """The step that is shown, and the last one."""
    here, last = shown(page, "place").split(" / ")
    return int(here), int(last)
