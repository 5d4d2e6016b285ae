"""The site in a browser, from disk: pages fit a phone, links and search work, the interactive pages step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag

import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.rings import work
from labstaff.site import build_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PHONE_WIDTH = 360
PROBLEMS = """() => [
  // Wider than the phone, except elements that scroll in their own frame or are for screen readers only.
  ...[...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .filter(e => !e.parentElement.closest(
      ".table-wrapper, div.math, pre, p:has(> img[src$='/loop.svg']), .katex svg, .katex-mathml")),
  ...[...document.images].filter(image => !image.complete || !image.naturalWidth),
  // TeX that KaTeX cannot parse, and commands that it does not know, which it sets in red.
  ...document.querySelectorAll(".katex-error, [mathcolor='#cc0000']"),
].map(e => e.outerHTML.slice(0, 120))"""
FONTS_WANTED = """() => [...document.querySelectorAll(".katex-html *")]
  .filter(e => [...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(e => getComputedStyle(e))
  .map(style => `${style.fontFamily.split(",")[0]} ${style.fontWeight} ${style.fontStyle}`)"""
FONTS = "() => [...document.fonts].map(face => `${face.family} ${face.weight} ${face.style}`)"
IDS = "() => [...document.querySelectorAll('[id]')].map(e => e.id)"
LINKS = """() => [...document.querySelectorAll("a[href]")].map(a => a.href)
  .filter(href => href.startsWith("file:"))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("book") / "site"
    build_site(ROOT, out)
    return out


@pytest.fixture
def problems(page: Page) -> list[str]:
    """Errors in the console, missing files, and requests to other machines."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda request: found.append(f"failed: {request.url}"))
    page.context.route(lambda url: not url.startswith(("file:", "data:")), lambda route: route.abort())
    return found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A window as narrow as a phone."""
    context = browser.new_context(viewport={"width": PHONE_WIDTH, "height": 740})
    yield context.new_page()
    context.close()


def test_every_page_fits_a_phone_and_its_links_work(page: Page, problems: list[str], site: Path) -> None:
    ids: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for file in sorted((site / "docs").glob("*.html")) + sorted(site.glob("labs/*/*.html")):
        page.goto(file.as_uri())
        assert page.evaluate(PROBLEMS) == [], file.name
        missing = set(page.evaluate(FONTS_WANTED)) - set(page.evaluate(FONTS))
        assert not missing, f"{file.name}: labstaff/site/katex/README.md says where the fonts are"
        ids[file.as_uri()] = set(page.evaluate(IDS))
        links[file.name] = set(page.evaluate(LINKS))
    assert len(ids) > 30
    assert problems == []
    for name, targets in links.items():
        for target in targets:  # an anchor with "=" is an interactive page's setting
            address, anchor = urldefrag(target)
            assert Path(address.removeprefix("file://")).is_file(), f"{name} links to {target}"
            assert "=" in anchor or anchor in ids.get(address, {anchor}) | {""}, f"{name} links to {target}"


TABLES = """() => [...document.querySelectorAll("article table.docutils")].map(table => ({
  head: table.rows[0].cells[0].textContent.trim(),
  byRow: table.classList.contains("by-row"),
  empty: [...table.tBodies[0].querySelectorAll("td")].filter(td => !td.textContent.trim() && td.offsetHeight).length,
}))"""


def test_tables_on_a_phone(page: Page, site: Path) -> None:
    """A table with text in its cells is read row by row, without empty cells; one of numbers stays a table."""
    found = {}
    for name in ("13_serving", "14_selected_attention", "references"):
        page.goto((site / "docs" / f"{name}.html").as_uri())
        found |= {table["head"]: table for table in page.evaluate(TABLES)}
    assert found["source"]["byRow"]
    assert [
        head for head in ("server", "rule", "model", "read for one token at 131,072 tokens") if found[head]["byRow"]
    ] == []
    assert [head for head, table in found.items() if table["byRow"] and table["empty"]] == []


def test_search_works_from_disk(page: Page, problems: list[str], site: Path) -> None:
    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto((site / "index.html").as_uri())
    for words, first in (("flash attention", "05_flash_attention.html"), ("rescaling", "#")):
        box = page.locator("input[name=q]").first
        box.fill(words)
        box.press("Enter")
        page.wait_for_url("**q=*")
        page.locator("#search-results ul.search a").first.wait_for()
        assert first in str(page.locator("#search-results ul.search a").first.get_attribute("href"))
    page.locator("#search-results ul.search a[href*='03_online_softmax.html#']").first.click()
    page.locator("article h1", has_text="Online softmax").wait_for()
    assert problems == []


def ring_pairs(page: Page) -> None:
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#ring tbody tr").all()]
    assert [number(row[4]) for row in rows] == work(16, 4, "contiguous").sum(1).tolist()


def outputs(**expected: int) -> Callable[[Page], None]:
    """Check the numbers in some of a page's outputs."""

    def check(page: Page) -> None:
        assert {name: number(shown(page, name)) for name in expected} == expected

    return check


INTERACTIVE: dict[str, tuple[str, Callable[[Page], None]]] = {
    "tile_loop": ("#n=4096&d=64&bq=72&bk=16&sram=65536&causal=0", outputs(**{"high-water": 64_864})),
    "cache_blocks": ("#scenario=four", outputs(owned=6, copies=3)),
    "ring": ("#ranks=4&each=4&layout=contiguous&causal=1", ring_pairs),
}
"""Page → a setting, and its numbers at the end, which the other tests compare with the course's code."""


@pytest.mark.parametrize("name", INTERACTIVE)
def test_an_interactive_page_steps_to_the_end(page: Page, problems: list[str], site: Path, name: str) -> None:
    setting, check = INTERACTIVE[name]
    page.goto((site / "docs" / f"{name}.html").as_uri() + setting)
    first, message = steps(page)[0], shown(page, "said")
    page.get_by_role("button", name="A step on", exact=True).click()
    assert steps(page)[0] == first + 1
    assert shown(page, "said") != message, "a step is announced"
    page.keyboard.press("ArrowRight")
    assert steps(page)[0] == first + 2
    page.get_by_role("button", name="To the end").click()
    _, last = steps(page)
    assert steps(page) == (last, last)
    check(page)
    page.wait_for_function(f"location.hash.includes('at={last}')")
    page.reload()
    assert steps(page) == (last, last), "the address keeps the step"
    assert problems == []


def test_the_calculator_computes_and_refuses(page: Page, problems: list[str], site: Path) -> None:
    page.goto((site / "docs" / "six_numbers.html").as_uri())
    assert shown(page, "token") == "131,072 bytes"
    assert (shown(page, "users"), shown(page, "step")) == ("4", "25.3 ms, 158 tokens/s in all")
    page.locator('[data-in="model"]').select_option("DeepSeek-V4-Pro, 2026")
    assert (shown(page, "cache"), shown(page, "read")) == ("1.210 GiB", "0.302 GiB")
    page.locator('[data-in="tokens"]').fill("1048576")
    assert shown(page, "cache") == "9.625 GiB"
    config = page.locator("#six_numbers textarea")
    config.fill('{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "kv_cache_ratio": 4}')
    assert shown(page, "refused") == "Refused: kv_cache_ratio may change the cache, and it is not read here."
    assert not page.locator('[data-out="cache"]').is_visible(), "nothing is shown of what is refused"
    config.fill('{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}')
    assert (shown(page, "refused"), shown(page, "token")) == ("", "512 bytes")
    page.locator('[data-in="tokens"]').fill("0")
    assert shown(page, "refused") == "Refused: tokens of each user: a number of at least 1 is needed."
    assert problems == []


def test_a_chapters_trace_loads_its_viewer(page: Page, problems: list[str], site: Path) -> None:
    page.goto((site / "docs/_static/traces/02_step.html").as_uri())
    page.locator(".detail", has_text="alive, the peak").first.wait_for()
    assert problems == []


def shown(page: Page, name: str) -> str:
    """The text of one output, even if a phone does not show it."""
    text: str = page.locator(f'[data-out="{name}"]').text_content() or ""
    return text


def number(text: str) -> int:
    """The first whole number of a text; 2,560 is 2560."""
    digits = text.replace(",", "").split()[0]
    return int(digits)


def steps(page: Page) -> tuple[int, int]:
    """The step that is shown, and the last one."""
    here, last = shown(page, "place").replace(",", "").split(" / ")
    return int(here), int(last)
