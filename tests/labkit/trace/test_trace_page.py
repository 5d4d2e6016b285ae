"""A trace's page, in a browser: walked through by keys, by hand and on a phone, without a word to any network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from labkit.trace.page import write
from labkit.trace.record import record

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def attention(q, k, v):
    scores = q @ k.mT
    weights = (scores / 4).softmax(-1)
    return weights @ v


def long(x):
    for _ in range(2500):
        x = torch.sin(x) * 1.001
    return x


def tensors(*shape: int, count: int = 3) -> list[torch.Tensor]:
    return [torch.ones(shape, requires_grad=True) for _ in range(count)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    short, small = record(attention, tensors(2, 64, 16)), record(attention, tensors(1, 32, 8))
    made = {"one": [("one", short)], "two": [("large", short), ("small", small)]}
    made["long"] = [("long", record(long, tensors(8, count=1)))]
    for name, runs in made.items():
        write(folder / f"{name}.html", runs)
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def window(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
    yield page
    context.close()
    assert complaints == []


def steps_told(page: Page) -> int:
    return int(re.match(r"Step (\d+) of", page.locator(".told").first.inner_text())[1])


def test_it_begins_at_the_peak_with_what_is_alive(window: Page, pages: dict[str, Path]) -> None:
    window.goto(pages["one"].as_uri())
    expect(window.locator(".told")).to_contain_text("alive, the peak")
    sizes = [int(text.replace(",", "")) for text in window.locator("tbody td:first-child").all_inner_texts()]
    assert sizes == sorted(sizes, reverse=True)
    peak = int(re.search(r"([\d,]+) B, step", window.locator("section header").inner_text())[1].replace(",", ""))
    assert sum(sizes) == peak == record(attention, tensors(2, 64, 16)).peak_bytes


def test_keys_walk_through_steps_and_tensors(window: Page, pages: dict[str, Path]) -> None:
    window.goto(pages["one"].as_uri())
    window.locator(".chart").focus()
    at_peak = steps_told(window)
    window.keyboard.press("ArrowLeft")
    assert steps_told(window) == at_peak - 1
    window.keyboard.press("Home")
    assert steps_told(window) == 1
    window.keyboard.press("Shift+ArrowRight")
    assert steps_told(window) == 11
    window.keyboard.press("p")
    assert steps_told(window) == at_peak
    window.keyboard.press("ArrowUp")
    expect(window.locator(".told")).to_contain_text("2 × 64 × 64 float32, 32.00 KiB, 32,768 B made at step")
    expect(window.locator(".told")).to_contain_text("weights = (scores / 4).softmax(-1)")
    expect(window.locator(".told")).to_contain_text("released after step")
    assert window.locator("tr.chosen").count() == 1


def test_a_pointer_finds_the_tensor_under_it(window: Page, pages: dict[str, Path]) -> None:
    window.goto(pages["one"].as_uri())
    box = window.locator(".chart").bounding_box()
    window.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.95 * box["height"])
    expect(window.locator(".told")).to_contain_text("made at step")
    window.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 2)
    expect(window.locator(".told")).not_to_contain_text("made at step")


def test_two_runs_stand_on_one_scale(window: Page, pages: dict[str, Path]) -> None:
    window.goto(pages["two"].as_uri())
    charts = [chart.bounding_box() for chart in window.locator(".chart").all()]
    assert charts[0]["y"] == charts[1]["y"]
    assert charts[0]["height"] == charts[1]["height"]
    drawn = """c => {
      const {data, width} = c.getContext("2d").getImageData(0, 0, c.width, c.height);
      for (let i = 0; i < data.length; i += 4) {
        const colour = data.slice(i, i + 3);
        if (Math.max(...colour) - Math.min(...colour) > 40) return c.height - Math.floor(i / 4 / width);
      }
    }"""
    large, small = (canvas.evaluate(drawn) for canvas in window.locator("canvas:not(.over)").all())
    assert small < large / 3


def test_thousands_of_operators_are_drawn_and_looked_at_closely(window: Page, pages: dict[str, Path]) -> None:
    window.goto(pages["long"].as_uri())
    n_steps = int(re.search(r"of (\d+)", window.locator("section header").inner_text())[1])
    assert n_steps > 10_000
    window.locator(".chart").focus()
    window.keyboard.press("End")
    assert steps_told(window) == n_steps
    for _ in range(8):
        window.keyboard.press("+")
    window.keyboard.press("ArrowLeft")
    window.keyboard.press("ArrowUp")
    expect(window.locator(".told")).to_contain_text("made at step")


def test_a_phone_shows_it_whole(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = context.new_page()
    for name in ("one", "two"):
        page.goto(pages[name].as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator(".chart").first.tap(position={"x": 150, "y": 340})
        expect(page.locator(".told").first).to_contain_text("made at step")
    context.close()
