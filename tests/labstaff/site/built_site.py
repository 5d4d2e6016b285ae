"""The book's site, built once for all tests of a run that look at it, and a browser window that is watched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.labs.catalog import ROOT
from labstaff.site import build_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


@cache
def _build(folder: Path) -> Path:
    build_site(ROOT, folder)
    return folder


def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; built by the first test that asks for it."""
    return _build(tmp_path_factory.getbasetemp() / "site")


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Chromium, without a window on the screen."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """A browser window, and what it asked other machines for and complained of."""

    page: Page
    site: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, name: str) -> Page:
        """Show a page of the site, straight from disk."""
        path, _, query = name.partition("?")
        self.page.goto((self.site / path).as_uri() + (f"?{query}" if query else ""))
        return self.page


def watch(context: BrowserContext, site: Path) -> Watched:
    """Refuse and note every request that does not go to the disk."""
    watched = Watched(context.new_page(), site)

    def refuse(route: Route) -> None:
        watched.requests.append(route.request.url)
        route.abort()

    context.route(lambda url: not url.startswith(("file:", "data:")), refuse)
    watched.page.on("console", lambda said: watched.complaints.append(said.text) if said.type == "error" else None)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("requestfailed", lambda request: watched.complaints.append(f"failed: {request.url}"))
    return watched
