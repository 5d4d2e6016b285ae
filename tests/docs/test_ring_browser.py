"""The interactive ring in a browser: it steps, obeys keys and fingers, keeps its address, and fits a phone."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.rings.counts import work

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = (ROOT / "docs" / "_static" / "ring" / "index.html").as_uri()
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FRESH = itertools.count()
SETTING = "#ranks=4&each=4&layout=contiguous&causal=1&at=0"

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page in a context of its own; fails when it logged or threw anything, or asked another machine."""
    context = browser.new_context(**(getattr(request, "param", None) or {"viewport": {"width": 1100, "height": 1300}}))
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
    page.goto(f"{ADDRESS}?{next(FRESH)}{SETTING}")
    yield page
    context.close()
    assert complaints == []


def shown(page: Page) -> list[list[int]]:
    """The numbers of the table: rank, whose block, pairs now, waits, pairs so far, waited."""
    rows = page.locator("#ring tbody tr").all()
    return [[int(text.replace(",", "")) for text in row.locator("th, td").all_inner_texts()] for row in rows]


def test_it_steps_and_shows_the_courses_numbers(page: Page) -> None:
    pairs = work(16, 4, "contiguous")
    for step in range(4):
        page.get_by_role("button", name="A step on").click()
        assert [row[:4] for row in shown(page)] == [
            [rank, (rank - step) % 4, pairs[rank, step], pairs[:, step].max() - pairs[rank, step]] for rank in range(4)
        ]
        assert f"Step {step}:" in page.locator("[data-out=said]").inner_text()
    page.get_by_role("button", name="To the end").click()
    assert "waited for 41 % of their time" in page.locator("[data-out=said]").inner_text()


def test_keys(page: Page) -> None:
    place = page.locator("[data-out=place]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert place.inner_text() == "2 / 5"
    page.locator(".rg-stage").focus()
    page.keyboard.press("End")
    assert place.inner_text() == "5 / 5"
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    page.wait_for_function("document.querySelector('[data-out=place]').textContent === '5 / 5'")


def test_another_setting_is_kept_in_the_address(page: Page) -> None:
    page.get_by_label("zigzag", exact=True).check()
    page.get_by_label("ranks", exact=True).fill("8")
    page.get_by_role("button", name="A step on").click()
    page.wait_for_function("location.hash.includes('ranks=8')")
    address = page.evaluate("location.hash")
    assert "layout=zigzag" in address
    page.goto(f"{ADDRESS}?{next(FRESH)}{address}")
    assert len(shown(page)) == 8
    assert {row[2] for row in shown(page)} == {10}


def test_presets(page: Page) -> None:
    page.get_by_role("button", name="No mask").click()
    assert {row[2] for row in shown(page)} == {16}
    assert not page.get_by_label("causal mask").is_checked()


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True},
        {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark", "reduced_motion": "reduce"},
    ],
    indirect=True,
    ids=["phone", "dark, little motion"],
)
def test_it_fits_and_can_be_touched(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 39
    page.get_by_role("button", name="Eight ranks").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    colour = page.evaluate("getComputedStyle(document.querySelector('.rg-now')).fill")
    assert colour != "rgb(0, 0, 0)"
