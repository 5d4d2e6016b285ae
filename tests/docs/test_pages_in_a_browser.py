"""The book's site in a browser, from disk: each page is whole and quiet, and the interactive ones step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.testing.rings.counts import work
from tests.docs import block_deeds, tile_loop_reference
from tests.labstaff.site.built_site import Watched, built_site, watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PHONE_WIDTH = 360
TOO_WIDE = """() => [...document.querySelectorAll("article *")]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  // What scrolls in a frame of its own, and what KaTeX clips or keeps for screen readers.
  .filter(e => !e.parentElement.closest(".table-wrapper, div.math, pre, .katex svg, .katex-mathml"))
  .map(e => e.outerHTML.slice(0, 80))"""
UNSEEN = """() => [...document.querySelectorAll("article img")]
  .filter(image => !image.complete || !image.naturalWidth).map(image => image.src)"""
FACES_WANTED = """() => [...document.querySelectorAll(".katex-html *")]
  .filter(e => [...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(e => getComputedStyle(e))
  .map(style => `${style.fontFamily.split(",")[0]} ${style.fontWeight} ${style.fontStyle}`)"""
FACES_THERE = "() => [...document.fonts].map(face => `${face.family} ${face.weight} ${face.style}`)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture
def window(browser: Browser, site: Path) -> Iterator[Watched]:
    """A window of a phone's width that fails the test when a page complains or asks another machine."""
    context = browser.new_context(viewport={"width": PHONE_WIDTH, "height": 740})
    window = watch(context, site)
    yield window
    context.close()
    assert (window.requests, window.complaints) == ([], [])


def test_every_page_is_whole_on_a_phone(window: Watched, site: Path) -> None:
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(names) > 15
    for name in names:
        page = window.open(name)
        assert page.evaluate(TOO_WIDE) == [], f"{name} has to be scrolled sideways"
        assert page.evaluate(UNSEEN) == [], f"{name} lacks images"
        missing = set(page.evaluate(FACES_WANTED)) - set(page.evaluate(FACES_THERE))
        assert not missing, f"{name}: labstaff/site/katex/README.md says where the fonts are"


def test_search_finds_a_word_from_disk(window: Watched) -> None:
    window.page.set_viewport_size({"width": 1200, "height": 900})
    page = window.open("index.html")
    box = page.locator("input[name=q]").first
    box.fill("rescaling")
    box.press("Enter")
    page.locator("#search-results p", has_text="pages matching").wait_for()
    found = page.locator("#search-results ul.search a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert "03_online_softmax.html" in " ".join(found)


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
def test_an_interactive_page_steps_to_the_course_s_numbers(window: Watched, site: Path, name: str) -> None:
    setting, at_the_end = INTERACTIVE[name]
    page = window.page
    page.goto((site / f"{name}.html").as_uri() + setting)
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
