"""The interactive tile loop in a browser: it steps, obeys keys and fingers, and shows Python's numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.tiles import io_formulas as forms
from tests.docs.player_page import go_to, number, place, shown
from tests.docs.tile_loop_reference import Moment, Setting, row_states, run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = ROOT / "docs" / "_static"
ADDRESS = (FOLDER / "tile_loop" / "index.html").as_uri()
FRESH = itertools.count()  # a new query makes it a new document, where a new hash alone does not
SMALL = "#n=16&d=4&bq=4&bk=4&sram=512&order=queries&causal=1"

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Page]:
    """A page for all tests that ask nothing special of it."""
    page = browser.new_page(viewport={"width": 1100, "height": 1300})
    yield page
    page.close()


@pytest.fixture
def page(browser: Browser, shared: Page, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page, freshly loaded at its default setting; a dict given as parameter goes to a context of its own.

    Fails when the page logged or threw anything, or asked another machine for anything.
    """
    own = getattr(request, "param", None)
    page = browser.new_context(**own).new_page() if own else shared
    complaints: list[str] = []
    heard = {
        "console": lambda message: complaints.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(str(error)),
        "request": lambda sent: (
            None if sent.url.startswith(("file:", "data:", "about:")) else complaints.append(sent.url)
        ),
    }
    for event, listener in heard.items():
        page.on(event, listener)
    page.goto(f"{ADDRESS}?{next(FRESH)}")
    yield page
    for event, listener in heard.items():
        page.remove_listener(event, listener)
    if own:
        page.context.close()
    assert complaints == []


def numbers(text: str) -> list[float]:
    """The decimals of a list, with its typographic minus signs."""
    return [float(part.replace("−∞", "-inf").replace("−", "-")) for part in text.split(", ")]


def moments_of(setting: Setting) -> list[Moment]:
    return run(setting).machine.moments


class TestNumbers:
    @pytest.mark.parametrize("order", ["queries", "keys"])
    def test_the_end_of_a_run_shows_the_machines_counts(self, page: Page, order: str) -> None:
        go_to(page, f"#n=13&d=3&bq=5&bk=4&sram=4096&order={order}&causal=1&at=100000")
        machine = run(Setting(order, 13, 13, 3, 3, 5, 4, causal=True)).machine
        assert number(shown(page, "now-loaded")) == number(shown(page, "end-loaded")) == machine.loaded
        assert number(shown(page, "now-stored")) == number(shown(page, "end-stored")) == machine.stored
        assert number(shown(page, "now-total")) == machine.traffic
        assert number(shown(page, "high-water")) == machine.high_water
        other = run(Setting("keys" if order == "queries" else "queries", 13, 13, 3, 3, 5, 4, causal=True)).machine
        assert number(shown(page, "other-total")) == other.traffic
        assert number(shown(page, "standard-total")) == forms.naive_traffic(13, 13, 3, 3, 5, 4).total

    def test_every_step_shows_the_machine(self, page: Page) -> None:
        setting = Setting("queries", 8, 8, 2, 2, 4, 4, causal=True)
        moments = iter(moments_of(setting))
        go_to(page, "#n=8&d=2&bq=4&bk=4&sram=512&causal=1")
        per_step = {"begin": 4, "scores": 2, "softmax": 3, "output": 2, "end": 1}
        steps = ["begin", "scores", "softmax", "output", "end", "begin", *["scores", "softmax", "output"] * 2, "end"]
        assert place(page) == (0, len(steps))
        page.locator(".tl-stage").focus()
        for step in steps:
            page.keyboard.press("ArrowRight")
            of_step = [next(moments) for _ in range(per_step[step])]
            assert number(shown(page, "now-loaded")) == of_step[-1].loaded
            assert number(shown(page, "now-stored")) == of_step[-1].stored
            assert number(shown(page, "in-use")) == max(moment.in_use for moment in of_step)
            listed = [number(text) for text in page.locator("[data-sram]").all_inner_texts() if text]
            assert sum(listed) == number(shown(page, "in-use"))
        assert list(moments) == []

    def test_a_rows_numbers_are_pythons(self, page: Page) -> None:
        setting = Setting("queries", 16, 16, 4, 4, 4, 4, causal=True)
        states = row_states(setting, 15)
        before = -np.inf
        for tile, (m, l, O) in enumerate(states):
            at = 3 * (1 + 2 + 3) + 2 * 3 + 1 + 3 * (tile + 1)  # the last step of tile (3, tile)
            go_to(page, f"{SMALL}&row=15&at={at}")
            row = {
                name: numbers(page.locator(f'[data-row="{name}"]').inner_text())
                for name in ("m", "l", "O", "alpha", "answer")
            }
            assert row["m"] == pytest.approx([m], abs=6e-5)
            assert row["l"] == pytest.approx([l], abs=6e-5)
            assert row["O"] == pytest.approx(list(O), abs=6e-5)
            assert row["answer"] == pytest.approx(list(O / l), abs=6e-5)
            assert row["alpha"] == pytest.approx([np.exp(before - m)], abs=6e-5)
            before = m
        assert page.locator('[data-row="answer"]').inner_text() == page.locator('[data-row="whole"]').inner_text()

    def test_tiles_are_counted_by_state(self, page: Page) -> None:
        go_to(page, f"{SMALL}&at=20")
        counts = {
            word: page.locator(f'[data-count="{word}"]').inner_text()
            for word in ("visited", "now", "to-come", "skipped")
        }
        assert counts == {"visited": "4", "now": "1", "to-come": "5", "skipped": "6"}
        label = page.locator(".tl-matrix svg").get_attribute("aria-label")
        assert label == "16 × 16 scores in tiles of 4 × 4: 4 visited, 1 now, 5 to come, 6 skipped."

    def test_a_setting_that_does_not_fit_is_said_in_words(self, page: Page) -> None:
        go_to(page, "#n=16&d=4&bq=8&bk=8&sram=512&causal=1&at=1000")
        ran = run(Setting("queries", 16, 16, 4, 4, 8, 8, True, 512))
        needs = run(Setting("queries", 16, 16, 4, 4, 8, 8, True)).machine.high_water
        assert shown(page, "fit") == f"Does not fit: needs {needs} B, has 512 B. Smaller blocks would fit."
        asked = re.search(r"needs (\d+) B for a \((\d+), (\d+)\)", ran.overflow)
        in_use = ran.machine.moments[-1].in_use
        assert shown(page, "said") == (
            f"SRAM overflows: making S, {asked[2]} × {asked[3]}, asks for {asked[1]} B "
            f"while {in_use} B of 512 B are in use. The run ends here."
        )
        assert place(page) == (2, 2)
        assert page.get_by_role("button", name="A step on").is_disabled()
        page.get_by_role("button", name="Largest blocks that fit").click()
        assert (page.locator("#tl-bq").input_value(), page.locator("#tl-bk").input_value()) == ("5", "4")
        assert shown(page, "fit").startswith("Fits: the loop needs 444 B of SRAM at once and has 512 B.")

    def test_not_even_one_by_one(self, page: Page) -> None:
        go_to(page, "#n=16&d=64&bq=4&bk=4&sram=512")
        assert shown(page, "fit").endswith("Not even tiles of 1 × 1 fit.")
        assert page.get_by_role("button", name="Largest blocks that fit").is_disabled()

    def test_a_guess_is_compared_with_the_count(self, page: Page) -> None:
        go_to(page, "#n=16&d=4&bq=4&bk=4&sram=512&causal=0")
        before, after = (forms.queries_outside_traffic(16, 16, 4, 4, block_q, 4).total for block_q in (4, 8))
        assert f"moves {before:,} B" in page.locator("#tl-question").inner_text()
        field = page.get_by_role("spinbutton", name="In all, this loop moves")
        field.fill(str(2 * after))
        field.press("Enter")
        assert shown(page, "answer").startswith(f"{after:,} B (1.50 KiB). Your number is 2.0 times that.")
        page.get_by_role("button", name="Set block_q = 8").click()
        assert page.locator("#tl-bq").input_value() == "8"
        assert number(shown(page, "end-total")) == after
        assert shown(page, "answer") == ""


class TestControls:
    def test_buttons_step(self, page: Page) -> None:
        for name, want in [
            ("A step on", 1),
            ("A step on", 2),
            ("A step back", 1),
            ("A tile on", 4),
            ("A tile on", 9),
            ("A tile back", 4),
            ("To the end", 38),
            ("Reset: back to the start", 0),
        ]:
            page.get_by_role("button", name=name, exact=True).click()
            assert place(page) == (want, 38), name
        assert page.get_by_role("button", name="A step back").is_disabled()

    def test_keys_step_and_the_focus_is_seen(self, page: Page) -> None:
        page.locator(".tl-stage").focus()
        page.keyboard.press("Shift")  # the focus came from the keyboard
        for key, want in [
            ("ArrowRight", 1),
            ("ArrowRight", 2),
            ("ArrowLeft", 1),
            ("Shift+ArrowRight", 4),
            ("End", 38),
            ("ArrowRight", 38),
            ("Shift+ArrowLeft", 37),
            ("Home", 0),
            ("ArrowLeft", 0),
        ]:
            page.keyboard.press(key)
            assert place(page) == (want, 38), key
        outline = page.locator(".tl-stage").evaluate("stage => getComputedStyle(stage).outlineStyle")
        assert outline == "solid"

    def test_arrows_step_without_a_focus_while_the_picture_is_in_view(self, page: Page) -> None:
        assert page.evaluate("document.activeElement === document.body")
        for key, want in [("ArrowRight", 1), ("Shift+ArrowRight", 4), ("ArrowLeft", 3), ("Home", 3), ("Space", 3)]:
            page.keyboard.press(key)
            assert place(page) == (want, 38), key
        page.evaluate("document.body.style.paddingBottom = '3000px'; scrollTo(0, 2500)")
        page.keyboard.press("ArrowRight")
        assert place(page) == (3, 38)

    def test_keys_in_a_field_belong_to_the_field(self, page: Page) -> None:
        page.locator("#tl-n").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert place(page)[0] == 0

    def test_every_step_is_announced(self, page: Page) -> None:
        said = page.locator('[data-out="said"]')
        assert said.get_attribute("aria-live") == "polite"
        page.locator(".tl-stage").focus()
        texts = [said.inner_text()]
        for _ in range(5):
            page.keyboard.press("ArrowRight")
            texts.append(said.inner_text())
        assert len(set(texts)) == 6
        assert texts[2] == "Tile (0, 0), queries 0–3, keys 0–3. Load K. S = Q Kᵀ / √d; K is not needed any more."

    def test_every_control_has_a_name(self, page: Page) -> None:
        for role in ("button", "slider", "spinbutton", "checkbox", "radio"):
            found = page.get_by_role(role).count()
            assert found == page.get_by_role(role, name=re.compile(r"\w")).count() > 0

    @pytest.mark.parametrize("page", [{"reduced_motion": "no-preference"}], indirect=True)
    def test_space_plays_and_pauses(self, page: Page) -> None:
        stop_the_clock(page)
        page.locator(".tl-stage").focus()
        page.keyboard.press("Space")
        assert page.get_by_role("button", name="Pause").is_visible()
        page.clock.run_for(4 * 450 + 50)
        assert place(page)[0] == 4
        page.keyboard.press("Space")
        page.clock.run_for(10_000)
        assert place(page)[0] == 4
        page.get_by_role("button", name="Play").click()
        page.clock.run_for(60_000)
        assert place(page) == (38, 38)
        assert page.get_by_role("button", name="Play").is_visible()

    @pytest.mark.parametrize("page", [{"reduced_motion": "reduce"}], indirect=True)
    def test_a_reader_who_wants_less_motion_gets_less(self, page: Page) -> None:
        stop_the_clock(page)
        page.get_by_role("button", name="Play").click()
        page.clock.run_for(3100)
        assert place(page)[0] == 2
        moving = "all => all.filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
        assert page.locator(".tile-loop *").evaluate_all(moving) == 0

    def test_a_slider_changes_the_setting_and_keeps_the_share_done(self, page: Page) -> None:
        page.get_by_role("button", name="To the end").click()
        slider = page.get_by_role("slider", name="block_q, slider")
        slider.focus()
        slider.press("ArrowRight")
        slider.press("ArrowRight")
        assert page.locator("#tl-bq").input_value() == "8"
        machine = run(Setting("queries", 16, 16, 4, 4, 8, 4, causal=True)).machine
        assert number(shown(page, "end-total")) == machine.traffic
        assert shown(page, "fit").startswith(f"Does not fit: needs {machine.high_water} B")
        page.locator("#tl-sram").fill("1000")
        here, last = place(page)
        assert here == last > 5
        page.locator("#tl-sram").fill("")
        page.locator("#tl-sram").blur()
        assert page.locator("#tl-sram").input_value() == "1000"

    def test_a_setting_can_be_linked(self, page: Page) -> None:
        page.locator("#tl-d").fill("3")
        page.get_by_label("keys outside").check()
        page.get_by_label("causal mask").uncheck()
        page.locator("#tl-row").fill("7")
        page.locator(".tl-stage").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("location.hash.includes('row=7')")
        page.wait_for_function("location.hash.includes('at=1')")
        kept = page.evaluate("[location.hash, document.querySelector('.tile-loop').innerText]")
        page.goto(f"{ADDRESS}?{next(FRESH)}{kept[0]}")
        assert page.evaluate("document.querySelector('.tile-loop').innerText") == kept[1]
        assert (page.locator("#tl-d").input_value(), page.get_by_label("keys outside").is_checked()) == ("3", True)

    @pytest.mark.parametrize(
        "hash_", ["#n=x&d=-4&bq=0&bk=1e9&sram=1&order=up&row=99&at=1e9", "#=", "#n=16&at=-1", "#sources"]
    )
    def test_an_address_that_makes_no_sense_does_no_harm(self, page: Page, hash_: str) -> None:
        page.goto(f"{ADDRESS}?{next(FRESH)}{hash_}")
        here, last = place(page)
        assert 0 <= here <= last

    def test_a_click_on_the_matrix_picks_a_row(self, page: Page) -> None:
        assert page.get_by_label("follow the loop").is_checked()
        frame = page.locator(".tl-frame")
        box = frame.bounding_box()
        frame.click(position={"x": 20, "y": box["height"] * 9.5 / 16}, force=True)
        assert page.locator("#tl-row").input_value() == "9"
        assert not page.get_by_label("follow the loop").is_checked()


@pytest.mark.parametrize("page", [{"has_touch": True, "viewport": {"width": 360, "height": 740}}], indirect=True)
class TestPhone:
    def test_it_fits_a_narrow_screen_and_a_finger(self, page: Page) -> None:
        page.locator("summary").tap()
        for values in (SMALL, "#n=4096&d=256&bq=4095&bk=4095&sram=4194304&order=keys&causal=1&at=3&row=4094"):
            go_to(page, values)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        kinds = ("button", "summary", "input[type=range]", "input[type=number]", ".tl-choice")
        measure = "all => all.map(e => e.getBoundingClientRect()).map(b => [b.width, b.height]).filter(b => b[0] > 0)"
        boxes = page.locator(", ".join(f".tile-loop {kind}" for kind in kinds)).evaluate_all(measure)
        assert len(boxes) > 20
        assert min(min(width, height) for width, height in boxes) >= 40
        go_to(page, SMALL)
        page.get_by_role("button", name="A step on").tap()
        assert place_hidden(page) == 1
        page.evaluate("document.querySelector('.tl-stage').scrollIntoView()")
        assert page.get_by_role("button", name="Play").bounding_box()["y"] + 40 <= 740, "the player is out of reach"
        page.locator(".tl-numbers").scroll_into_view_if_needed()
        assert page.locator(".pl-player").bounding_box()["y"] >= 0, "the player does not stick"


def stop_the_clock(page: Page) -> None:
    """From here on the page's time passes by `page.clock.run_for` alone."""
    page.clock.install(time=0)
    page.clock.pause_at(1_000_000)


def place_hidden(page: Page) -> int:
    """Where the slider of steps stands; a phone has no room for the figures."""
    return int(page.get_by_role("slider", name="Step").input_value())
