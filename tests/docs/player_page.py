"""What a page with the course's player shows, and how a test moves in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def shown(page: Page, name: str) -> str:
    """The text of one output."""
    text: str = page.evaluate("name => document.querySelector(`[data-out=${name}]`).innerText", name)
    return text


def number(text: str) -> int:
    """The first whole number of a text, 2,560 read as 2560."""
    return int(re.search(r"[\d,]+", text)[0].replace(",", ""))


def go_to(page: Page, values: str) -> None:
    """Change the address, and wait until the page has heard of it."""
    heard = "addEventListener('hashchange', () => done(), {once: true})"
    page.evaluate(f"hash => new Promise(done => {{ {heard}; location.hash = hash; }})", values)


def place(page: Page) -> tuple[int, int]:
    """The step that is shown, and the last one."""
    here, last = shown(page, "place").split(" / ")
    return number(here), number(last)
