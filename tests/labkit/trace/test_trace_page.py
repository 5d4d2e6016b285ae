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


def tensors(*shape: int, count: int = 3) -> list[torch.Tensor]:
    return [torch.ones(shape, requires_grad=True) for _ in range(count)]


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


def test_a_page_shows_the_peak_and_is_walked_by_keys(window: Page, tmp_path: Path) -> None:
    run = record(attention, tensors(2, 64, 16))
    write(tmp_path / "trace.html", [("one", run)])
    window.goto((tmp_path / "trace.html").as_uri())
    expect(window.locator(".told")).to_contain_text("alive, the peak")
    sizes = [int(text.replace(",", "")) for text in window.locator("tbody td:first-child").all_inner_texts()]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == run.peak_bytes

    at_peak = steps_told(window)
    window.locator(".chart").focus()
    window.keyboard.press("Home")
    assert steps_told(window) == 1
    window.keyboard.press("p")
    assert steps_told(window) == at_peak
    window.keyboard.press("ArrowUp")
    expect(window.locator(".told")).to_contain_text("weights = (scores / 4).softmax(-1)")
    window.set_viewport_size({"width": 390, "height": 844})
    assert window.evaluate("document.documentElement.scrollWidth") <= 390
