"""The book's site in a real browser, opened from disk: searchable, walkable, and with a tile loop that runs in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, expect

from labkit.labs.catalog import find_labs
from tests.labstaff.site.built_site import Watched, built_site, watch

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture
def window(browser: Browser, site: Path) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    yield watch(context, site)
    context.close()


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


def test_marks_of_found_words_stay_within_the_text(window: Watched) -> None:
    icons = " ".join(window.open("index.html").locator("svg title").all_text_contents())
    words = {"attention", *re.findall(r"[a-z]{4,}", icons.lower())}
    assert len(words) > 5
    asked = "+".join(sorted(words))
    for name in ("index.html", "05_flash_attention.html", "tile_loop.html", f"labs/{find_labs()[0].folder.name}.html"):
        page = window.open(f"{name}?highlight={asked}")
        page.locator(".highlighted").first.wait_for(state="attached")
        assert page.locator(".highlighted:not(article *)").count() == 0, name
    assert window.complaints == []


def test_nothing_is_found_for_no_word(window: Watched) -> None:
    page = window.open("search.html?q=xyzzyx")
    expect(page.locator("#search-results")).to_contain_text("did not match")
    assert page.locator("#search-results li").count() == 0


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


@pytest.mark.parametrize(
    ("chapter", "link", "place", "order"),
    [
        ("04_tiling_and_blocking", "the upper state", "21 / ", "queries"),
        ("04_tiling_and_blocking", "the lower", "22 / ", "keys"),
        ("04_tiling_and_blocking", "open this state", "0 / ", "queries"),
        ("05_flash_attention", "Open this state", "31 / ", "queries"),
        ("05_flash_attention", "the softmax just before it", "30 / ", "queries"),
    ],
)
def test_a_chapter_opens_its_state_in_one_click(
    window: Watched, chapter: str, link: str, place: str, order: str
) -> None:
    page = window.open(f"{chapter}.html")
    page.get_by_role("link", name=link, exact=True).click()
    expect(page.locator('[data-out="place"]')).to_have_text(re.compile(f"^{place}"))
    expect(page.get_by_label(f"{order} outside")).to_be_checked()
    expect(page.locator(".tl-matrix svg")).to_be_in_viewport()
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
