"""The page of a cache's blocks in a browser: it shows the course's BlockManager, obeys keys and fingers, and fits."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from labkit.labs.catalog import ROOT
from tests.docs.block_deeds import Deed, Expected, run
from tests.labstaff.site.built_site import built_site, watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Page

FOLDER = ROOT / "docs" / "_static"
FRESH = itertools.count()  # a new query makes it a new document, where a new hash alone does not
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page by itself, freshly loaded; a dict given as parameter says in which kind of window.

    Fails when the page logged an error or asked another machine for anything.
    """
    context = browser.new_context(**getattr(request, "param", {"viewport": {"width": 1100, "height": 1300}}))
    window = watch(context, FOLDER)
    open_at(window.page, "")
    yield window.page
    context.close()
    assert (window.requests, window.complaints) == ([], [])


def open_at(page: Page, values: str) -> None:
    page.goto(f"{(FOLDER / 'cache_blocks' / 'index.html').as_uri()}?{next(FRESH)}{values}")


def shown(page: Page, name: str) -> str:
    return page.locator(f'[data-out="{name}"]').inner_text()


def place(page: Page) -> str:
    return shown(page, "place")


def deeds_of(page: Page, scenario: str) -> list[Deed]:
    deeds: list[Deed] = page.evaluate("name => cacheBlocks.SCENARIOS[name].deeds", scenario)
    return deeds


def assert_shows(page: Page, want: Expected) -> None:
    """Fail unless pool, tables and counts on the screen are those of a position."""
    cards = page.locator(".cb-block").evaluate_all(
        """all => all.map(card => ({
          state: card.dataset.state, head: card.querySelector(".cb-head").textContent,
          owners: [...card.querySelectorAll(".cb-owners b")].map(e => e.textContent),
          tokens: [...card.querySelectorAll(".cb-filled")].map(e => e.textContent),
        }))"""
    )
    for b, card in enumerate(cards):
        owners, findable = want.owners[b], want.findable[b]
        assert sorted(card["owners"]) == owners
        assert card["state"] == ("owned" if owners else "cached" if findable else "blank")
        assert card["head"] == f"{b}{'#' * findable}{f'×{len(owners)}' if owners else ''}"
        assert card["tokens"] == want.contents[b]
    assert len(cards) == len(want.owners)
    rows = {
        name: [page.locator(f'[data-{what}="{name}"]').inner_text() for what in ("table", "tokens", "found")]
        for name in want.tables
    }
    assert rows == {
        name: [", ".join(map(str, table)), str(len(want.texts[name])), str(want.found[name])]
        for name, table in want.tables.items()
    }
    assert page.locator("[data-sequence]").count() == len(want.tables)
    counts = {name: int(shown(page, name)) for name in ("owned", "shared", "cached", "blank", "wasted", "copies")}
    assert counts == {name: (want.counts | want.sums)[name] for name in counts}


@pytest.mark.parametrize("scenario", ["tour", "full", "twins"])
def test_every_step_shows_the_courses_manager(page: Page, scenario: str) -> None:
    open_at(page, f"#scenario={scenario}")
    pool = page.evaluate("s => [cacheBlocks.SCENARIOS[s].blocks, cacheBlocks.SCENARIOS[s].size]", scenario)
    said = set()
    for want in run(deeds_of(page, scenario), *pool):
        assert_shows(page, want)
        said.add(shown(page, "said"))
        assert ("Refused" in shown(page, "said")) == (want.refused == "full")
        page.keyboard.press("ArrowRight")
    assert len(said) == len(deeds_of(page, scenario)) + 1


def test_another_pool_shows_the_same_deed(page: Page) -> None:
    open_at(page, "#scenario=tour&at=8")
    slider = page.get_by_role("slider", name="places in a block")
    slider.focus()
    slider.press("ArrowLeft")
    assert place(page) == "8 / 19"
    assert_shows(page, run(deeds_of(page, "tour"), 10, 3)[8])
    page.get_by_role("slider", name="blocks", exact=True).press("Home")
    assert_shows(page, run(deeds_of(page, "tour"), 4, 3)[8])


def test_bytes_are_llamas(page: Page) -> None:
    open_at(page, "#scenario=tour&at=2")
    told = {name: shown(page, name) for name in ("kept", "kept-in-runs", "read", "read-in-runs")}
    assert told == {"kept": "2.50 MiB", "kept-in-runs": "8 MiB", "read": "3 MiB", "read-in-runs": "8 MiB"}


def test_a_guess_is_compared_with_the_next_position(page: Page) -> None:
    told = run(deeds_of(page, "tour"), 10, 4)
    for at, (here, following) in enumerate(itertools.pairwise(told)):
        free = "block has" if len(here.free) == 1 else "blocks have"
        assert page.locator("#cb-question").inner_text().startswith(f"Now {len(here.free)} {free} no owner. Next, ")
        field = page.get_by_role("spinbutton")
        field.fill(str(len(following.free) + at % 2))
        field.press("Enter")
        verdict = "Not quite" if at % 2 else "Right"
        assert shown(page, "answer").startswith(f"{verdict}: {len(following.free)}, ")
        numbers = [int(each) for each in re.findall(r"\d+", shown(page, "answer"))]
        if len(numbers) > 1:
            taken = sum(numbers[2:]) if "given up" not in shown(page, "answer") else -numbers[2]
            assert numbers[0] == numbers[1] - taken
        page.get_by_role("button", name="Take the step").click()
        assert place(page) == f"{at + 1} / 19"
        assert shown(page, "answer") == "" or at == 18
    assert page.locator(".cb-question").is_hidden()


class TestControls:
    def test_buttons_and_keys_step_by_deeds_and_scenes(self, page: Page) -> None:
        for name, want in [("A step on", 1), ("A scene on", 2), ("A scene on", 6), ("A step back", 5),
                           ("A scene back", 2), ("To the end", 19), ("A scene back", 16)]:  # fmt: skip
            page.get_by_role("button", name=name, exact=True).click()
            assert place(page) == f"{want} / 19", name
        page.locator(".cb-stage").focus()
        for key, want in [("Home", 0), ("ArrowRight", 1), ("Shift+ArrowRight", 2), ("End", 19), ("ArrowLeft", 18)]:
            page.keyboard.press(key)
            assert place(page) == f"{want} / 19", key
        assert page.locator('[data-out="said"]').get_attribute("aria-live") == "polite"

    def test_a_story_begins_with_its_own_pool(self, page: Page) -> None:
        page.get_by_role("button", name="Four answers").click()
        assert page.locator(".cb-block").count() == 8
        page.get_by_role("button", name="To the end").click()
        assert (shown(page, "owned"), shown(page, "copies")) == ("6", "3")
        pressed = page.locator('.cb-setting button[aria-pressed="true"]').all_inner_texts()
        assert pressed == ["Four answers"]

    def test_every_control_has_a_name(self, page: Page) -> None:
        for role in ("button", "slider", "spinbutton"):
            found = page.get_by_role(role).count()
            assert found == page.get_by_role(role, name=re.compile(r"\w")).count() > 0

    @pytest.mark.parametrize("page", [{"reduced_motion": "reduce"}], indirect=True)
    def test_a_reader_who_wants_less_motion_gets_less(self, page: Page) -> None:
        page.clock.install(time=0)
        page.clock.pause_at(1_000_000)
        page.get_by_role("button", name="Play").click()
        page.clock.run_for(3100)
        assert place(page) == "2 / 19"
        moving = "all => all.filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
        assert page.locator(".cache-blocks *").evaluate_all(moving) == 0

    def test_a_place_can_be_linked(self, page: Page) -> None:
        page.get_by_role("button", name="Too small").click()
        page.get_by_role("slider", name="blocks", exact=True).press("ArrowRight")
        page.get_by_role("button", name="A scene on").click()
        page.wait_for_function("location.hash.includes('at=2')")
        kept = page.evaluate("[location.hash, document.querySelector('.cache-blocks').innerText]")
        open_at(page, kept[0])
        assert page.evaluate("document.querySelector('.cache-blocks').innerText") == kept[1]

    @pytest.mark.parametrize(
        "hash_", ["#scenario=toString&blocks=1e9&size=0&longest=x&at=-1", "#=", "#sources", "#at=1e9"]
    )
    def test_an_address_that_makes_no_sense_does_no_harm(self, page: Page, hash_: str) -> None:
        open_at(page, hash_)
        assert re.fullmatch(r"\d+ / 19", place(page))


class TestSight:
    @pytest.mark.parametrize("page", [{"viewport": {"width": 1280, "height": 900}}], indirect=True)
    @pytest.mark.parametrize("values", ["#scenario=tour&at=8", "#scenario=four&blocks=16&size=16&at=44"])
    def test_each_block_can_be_read(self, page: Page, values: str) -> None:
        open_at(page, values)
        cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
        assert page.locator(".cb-places span, .cb-head, .cb-owners b").evaluate_all(cut) == []

    @pytest.mark.parametrize("page", [PHONE], indirect=True)
    def test_it_fits_a_phone_and_a_finger(self, page: Page) -> None:
        for values in (
            "#scenario=tour&at=12",
            "#scenario=four&blocks=16&size=16&at=44",
            "#scenario=tour&blocks=16&at=19",
        ):
            open_at(page, values)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
            assert page.locator(".cb-places span, .cb-head, .cb-owners b").evaluate_all(cut) == []
        open_at(page, "#scenario=tour&at=12")  # at the end of a story there is nothing to guess
        measure = "all => all.map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
        boxes = page.locator(".cache-blocks button, .cache-blocks input").evaluate_all(measure)
        assert len(boxes) > 12
        assert min(min(width, height) for width, height in boxes) >= 40


class TestInTheBook:
    """The page among the others of the site."""

    @pytest.mark.parametrize("values", ["", "#scenario=four&blocks=16&size=16&longest=64&at=44"])
    def test_a_desktop_shows_pool_tables_and_player_together(self, browser: Browser, site: Path, values: str) -> None:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        window = watch(context, site)
        window.page.goto((site / "cache_blocks.html").as_uri() + values)
        if not values:
            window.page.keyboard.press("Shift+ArrowRight")  # nothing has the focus
            window.page.locator('[data-out="place"]', has_text="2 / 19").wait_for()
        parts = (".cb-blocks", ".cb-sums", ".pl-player", ".cb-tables", ".cb-text")
        boxes = [window.page.locator(part).bounding_box() for part in parts]
        assert window.page.evaluate("scrollY") == 0
        assert min(box["y"] for box in boxes) >= 0
        assert max(box["y"] + box["height"] for box in boxes) <= 900
        assert [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)] == []
        assert (window.requests, window.complaints) == ([], [])
        context.close()

    def test_on_a_phone_the_player_covers_nothing_that_it_plays(self, browser: Browser, site: Path) -> None:
        context = browser.new_context(**PHONE)
        page = watch(context, site).page
        page.goto((site / "cache_blocks.html").as_uri() + "#scenario=tour&at=10")
        header = page.locator("header.mobile-header").bounding_box()["height"]
        pool_whole = tables_whole = False
        for top in range(0, 1500, 50):
            page.evaluate("top => scrollTo({top, behavior: 'instant'})", top)
            player, pool, tables = (
                page.locator(part).bounding_box() for part in (".pl-player", ".cb-blocks", ".cb-tables")
            )
            assert not overlap(player, pool), top
            seen = [box["y"] >= header and box["y"] + box["height"] <= 844 for box in (player, pool, tables)]
            pool_whole |= seen[0] and seen[1]
            tables_whole |= seen[0] and seen[2] and not overlap(player, tables)
        assert pool_whole, "pool and player are never in view together"
        assert tables_whole, "tables and player are never in view together"
        context.close()

    @pytest.mark.parametrize(
        ("link", "want"),
        [("this state", "8 / 19"), ("a shared beginning", "2 / 19"), ("a text that comes back", "12 / 19"),
         ("a full pool", "13 / 19"), ("blocks forgotten", "17 / 19"), ("See it", "44 / 44")],
    )  # fmt: skip
    def test_the_chapter_opens_its_state_in_one_click(self, browser: Browser, site: Path, link: str, want: str) -> None:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        window = watch(context, site)
        page = window.open("09_decoding.html")
        page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
        page.get_by_role("link", name=link, exact=True).click()
        page.locator('[data-out="place"]', has_text=want).wait_for()
        expect(page.locator(".cb-blocks")).to_be_in_viewport(ratio=1)
        assert (window.requests, window.complaints) == ([], [])
        context.close()

    def test_the_pages_own_links_lead_to_their_states(self, browser: Browser, site: Path) -> None:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = watch(context, site).open("cache_blocks.html")
        given: list[str] = page.locator('article a[href^="#scenario="]').evaluate_all(
            "all => all.map(a => a.getAttribute('href'))"
        )
        assert len(given) == 8
        for href in given:
            wanted: dict[str, Any] = dict(part.split("=") for part in href[1:].split("&"))
            page.locator(f"article a[href={json.dumps(href)}]").first.click()
            page.locator('[data-out="place"]', has_text=re.compile(f"^{wanted['at']} / ")).wait_for()
            assert page.locator(".cb-block").count() == int(wanted["blocks"])
            expect(page.locator(".cb-blocks")).to_be_in_viewport(ratio=1)
        context.close()


def overlap(a: FloatRect, b: FloatRect) -> bool:
    """Whether two boxes have a point in common."""
    across = a["x"] < b["x"] + b["width"] and b["x"] < a["x"] + a["width"]
    return across and a["y"] < b["y"] + b["height"] and b["y"] < a["y"] + a["height"]
