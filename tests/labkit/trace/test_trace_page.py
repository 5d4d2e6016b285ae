"""A trace's page in a browser: walked through with keys and pointer, on a desktop and a phone, without a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from torch import nn

from labkit.trace.page import write
from labkit.trace.record import record

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return weights(q, k) @ v


def weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / 4).softmax(-1)


def long(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2500):
        x = torch.sin(x) * 1.001
    return x


def traced(folder: Path, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> str:
    made = record(function, [torch.ones(shape, requires_grad=True) for shape in shapes])
    write(folder / f"{function.__name__}.html", [(function.__name__, made)])
    return (folder / f"{function.__name__}.html").as_uri()


def step_shown(page: Page) -> int:
    return int(re.match(r"Step ([\d,]+) of", page.locator(".detail").inner_text())[1])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).tanh()


def folded_modules(page: Page, folder: Path) -> None:
    """Unfold a module, show its tensors, then those of a difference between two runs."""
    runs = [(name, record(Net(), [torch.ones(n, 16)], steps=1)) for name, n in (("short", 8), ("long", 32))]
    write(folder / "two.html", runs)
    page.goto((folder / "two.html").as_uri())
    first = page.locator("main section").first
    first.locator("[data-by=modules]").click()
    expect(first.locator("tbody tr")).to_have_count(3)
    first.locator("[aria-label='Unfold Net.layers']").click()
    expect(first.locator("tbody tr")).to_have_count(5)
    first.locator("tbody tr", has_text="layers").first.click()
    expect(first.locator("[aria-label='Show all tensors again']")).to_contain_text("Net.layers")
    shown = first.locator("tbody tr")
    assert shown.count() > 3
    assert all("layers" in text for text in shown.all_inner_texts())
    expect(page.locator(".differences")).to_contain_text("return self.layers(x).tanh()")
    page.locator(".differences tr", has_text="tanh").first.click()
    for each in page.locator("main section").all():
        expect(each.locator("[aria-label='Show all tensors again']")).to_contain_text("tanh")
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_page_is_walked_through(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))

    page.goto(traced(tmp_path, attention, *[(2, 64, 16)] * 3))
    expect(page.locator(".detail")).to_contain_text("alive, the peak")
    assert page.evaluate("document.documentElement.scrollWidth") == width, "cut or wider than the window"
    page.evaluate("document.querySelectorAll('.list tbody button').forEach(more => more.click())")
    sizes = [int(text.replace(",", "")) for text in page.locator("tbody td:first-child").all_inner_texts()]
    made, before = (
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) B", page.locator("header span").inner_text())
    )
    assert (sizes, sum(sizes)) == (sorted(sizes, reverse=True), made + before)

    at_peak = step_shown(page)
    page.locator(".chart").focus()
    page.keyboard.press("ArrowLeft")
    assert step_shown(page) == at_peak - 1
    page.keyboard.press("p")
    for _ in range(4):  # q, k and v are the oldest
        page.keyboard.press("ArrowUp")
    expect(page.locator(".detail")).to_contain_text("activation 2 × 64 × 64 float32, 32.00 KiB")
    page.locator("summary").click()
    expect(page.locator(".detail li")).to_have_count(2)
    expect(page.locator(".detail li").nth(1)).to_contain_text("return weights(q, k) @ v")
    box = page.locator(".chart").bounding_box()
    page.locator(".chart").click(position={"x": 0.5 * box["width"], "y": box["height"] - 30})
    expect(page.locator(".detail")).to_contain_text("input: ")

    folded_modules(page, tmp_path)
    page.goto(traced(tmp_path, long, (8,)))
    page.locator(".chart").focus()
    page.keyboard.press("End")
    assert step_shown(page) > 10_000
    for _ in range(8):
        page.keyboard.press("+")
    page.keyboard.press("ArrowUp")
    expect(page.locator("tr.chosen")).to_have_count(1)
    context.close()
    assert complaints == []
