"""Text in figures and on pages stands out from what is behind it, in light and dark, by the ratio of WCAG 2.2."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from pygments.styles import get_style_by_name

from labkit.labs.catalog import ROOT
from labstaff.site import conf

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


def of_hex(colour: str) -> np.ndarray:
    """`#0d1117` or `0d1117` as three numbers."""
    return np.array(list(bytes.fromhex(colour.removeprefix("#"))), dtype=float)


@pytest.mark.parametrize("colours", [conf.LIGHT, conf.DARK], ids=["light", "dark"])
def test_text_on_pages_stands_out(colours: dict[str, str]) -> None:
    behind = np.array([of_hex(colours["paper"]), of_hex(colours["aside"])])
    for role in ("ink", "muted", "blue"):
        assert min(contrast(of_hex(colours[role]), each[None]) for each in behind) >= LEAST, role


@pytest.mark.parametrize("name", [conf.pygments_style, conf.pygments_dark_style])
def test_code_on_pages_stands_out(name: str) -> None:
    style = get_style_by_name(name)
    behind = of_hex(style.background_color)[None]
    ratios = {str(token): contrast(of_hex(look["color"]), behind) for token, look in style if look["color"]}
    assert {token for token, ratio in ratios.items() if ratio < LEAST} <= {"Token.Text.Whitespace"}, "not seen anyway"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_in_figures_stands_out(browser: Browser, mode: str) -> None:
    page = browser.new_page(color_scheme=mode, viewport={"width": 1400, "height": 1600})
    faint, count = set(), 0
    for figure in FIGURES:
        page.goto(figure.as_uri())
        texts = page.evaluate(TEXTS)
        page.evaluate(HIDE)
        pixels = np.asarray(
            Image.open(io.BytesIO(page.screenshot(clip=page.evaluate(FRAME)))).convert("RGB"), dtype=float
        )
        for text, fill, left, top, right, bottom in texts:
            colour = np.array([float(part) for part in fill.removeprefix("rgb(").removesuffix(")").split(",")])
            behind = pixels[max(0, int(top)) : int(bottom) + 1, max(0, int(left)) : int(right) + 1].reshape(-1, 3)
            ratio = contrast(colour, behind)
            count += 1
            if ratio < LEAST:
                faint.add(f"{figure.name}: {text!r} in {fill}: {ratio:.2f}")
    assert count > 1000 and not faint, "\n".join(sorted(faint))
