"""Text in figures stands out from what is behind it, in light and dark mode, by the ratio that WCAG 2.2 asks for."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from labkit.labs.catalog import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.browser]

LEAST = 4.5
"""Success criterion 1.4.3, level AA, for text of ordinary size."""
FIGURES = sorted((ROOT / "docs").rglob("*.svg"))
TEXTS = """() => [...document.querySelectorAll("text")].map(text => {
  const {x, y, width, height} = text.getBoundingClientRect();
  return [text.textContent, getComputedStyle(text).fill, x, y, x + width, y + height];
})"""
FRAME = """() => {
  const {x, y, width, height} = document.documentElement.getBoundingClientRect();
  return {x, y, width, height};
}"""
HIDE = """() => document.documentElement.append(Object.assign(
  document.createElementNS("http://www.w3.org/2000/svg", "style"), {textContent: "text { visibility: hidden }"}))"""


def luminance(colours: np.ndarray) -> np.ndarray:
    """WCAG's relative luminance of sRGB colours, `(..., 3)` from 0 to 255."""
    shares = colours / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(text: np.ndarray, behind: np.ndarray) -> float:
    """The median over all points behind a text: a line that crosses it does not count."""
    one, other = luminance(text), luminance(behind)
    return float(np.median((np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)))


def test_contrast_is_what_the_standard_says() -> None:
    black, grey, white = np.zeros(3), np.full(3, 0x76), np.full((1, 3), 255)
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_in_figures_stands_out(browser: Browser, mode: str) -> None:
    page = browser.new_page(color_scheme=mode, viewport={"width": 1400, "height": 1600})
    faint, count = set(), 0
    for figure in FIGURES:
        page.goto(figure.as_uri())
        texts = page.evaluate(TEXTS)
        page.evaluate(HIDE)
        shot = page.screenshot(clip=page.evaluate(FRAME))
        pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), dtype=float)
        for text, fill, left, top, right, bottom in texts:
            colour = np.array([float(part) for part in fill.removeprefix("rgb(").removesuffix(")").split(",")])
            behind = pixels[max(0, int(top)) : int(bottom) + 1, max(0, int(left)) : int(right) + 1].reshape(-1, 3)
            ratio = contrast(colour, behind)
            count += 1
            if ratio < LEAST:
                faint.add(f"{figure.name}: {text!r} in {fill}: {ratio:.2f}")
    assert count > 1000 and not faint, "\n".join(sorted(faint))
