"""The whole site, with the pages for instructors: it builds without a warning, and its links and cards are right."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from PIL import Image

from labkit.labs.catalog import ROOT, find_labs
from labstaff.figures import CARD
from labstaff.site import build_site
from labstaff.site.mistakes import mistake_pages

pytestmark = pytest.mark.slow

URL = "https://example.org/attention/"
WITHOUT_A_CARD = {"404.html", "search.html"}
INTERACTIVE = re.compile(r"docs/_static/.*")
"""Pages inside pages, and traces: a link's anchor is a setting there."""


class PageParser(HTMLParser):
    """What a page has in its head, where it links to, and what can be linked to in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.title, self.in_title = "", False
        self.metas: dict[str, str] = {}
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.base = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.targets += [values[name] for name in ("href", "src") if name in values and tag != "base"]
        self.in_title = self.in_title or (tag == "title" and not self.title)
        if tag == "base":
            self.base = values["href"]
        if tag == "meta" and "content" in values:
            self.metas[values.get("name") or values.get("property", "")] = values["content"]

    def handle_endtag(self, tag: str) -> None:
        self.in_title = self.in_title and tag != "title"

    def handle_data(self, data: str) -> None:
        self.title += data if self.in_title else ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "site"
    build_site(ROOT, out, mistake_pages(find_labs(ROOT)), url=URL.rstrip("/"))
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, PageParser]:
    """By their names in the site, like "docs/README.html"."""
    return {str(file.relative_to(site)): PageParser(file) for file in site.rglob("*.html")}


def test_every_link_inside_the_site_leads_somewhere(site: Path, pages: dict[str, PageParser]) -> None:
    broken = []
    for name, page in pages.items():
        for target in page.targets:
            address, anchor = urldefrag(urljoin(page.base or URL + name, target))
            if not address.startswith(URL):
                continue
            linked = unquote(address.removeprefix(URL).partition("?")[0]) or "index.html"
            there = pages.get(linked)
            if not (site / linked).is_file() or (
                anchor
                and there
                and not INTERACTIVE.match(linked)
                and "=" not in anchor
                and unquote(anchor) not in there.ids
            ):
                broken.append(f"{name}: {target}")
    assert broken == []
    assert sum(len(page.targets) for page in pages.values()) > 5000


def test_every_page_has_a_title_a_description_and_an_image_of_its_own_size(
    site: Path, pages: dict[str, PageParser]
) -> None:
    titles = []
    for name, page in pages.items():
        assert page.title.strip(), name
        if INTERACTIVE.match(name) or name in WITHOUT_A_CARD:
            continue
        metas = page.metas
        titles += [metas["og:title"]] if name != "index.html" else []
        assert 20 < len(metas["description"]) <= 200, f"{name}: {metas['description']}"
        assert not re.search(r"[\\^]|The question|Objective", metas["description"]), f"{name}: {metas['description']}"
        assert metas["og:description"] == metas["description"]
        assert metas["og:url"] == (URL if name == "index.html" else URL + name)
        with Image.open(site / metas["og:image"].removeprefix(URL)) as image:
            assert image.size == CARD, name
    assert len(titles) > 60
    assert len(set(titles)) == len(titles)
    assert pages["index.html"].metas["og:title"] == pages["docs/README.html"].metas["og:title"]
    chapter = pages["docs/05_flash_attention.html"].metas["og:image"]
    assert chapter != pages["docs/glossary.html"].metas["og:image"]


def test_no_sentence_becomes_a_list(site: Path) -> None:
    """A line that begins with a number and a full stop is an item, also in the middle of a paragraph."""
    for file in site.rglob("*.html"):
        lists = re.findall(r"<ol.*?</ol>", file.read_text(encoding="utf-8"), re.DOTALL)
        assert [each for each in lists if each.count("<li") < 2] == [], file.name


def test_map_names_every_page_with_a_card(site: Path, pages: dict[str, PageParser]) -> None:
    named = re.findall("<loc>(.*?)</loc>", (site / "sitemap.xml").read_text(encoding="utf-8"))
    wanted = [name for name in pages if not INTERACTIVE.match(name) and name not in {*WITHOUT_A_CARD, "index.html"}]
    assert sorted(named) == sorted(URL + name for name in wanted)


def test_a_missing_page_links_from_the_site_s_address_at_any_depth(pages: dict[str, PageParser]) -> None:
    missing = pages["404.html"]
    assert missing.base == URL + "404.html"
    assert missing.metas["robots"] == "noindex"
    assert "docs/README.html" in missing.targets
    assert not [target for target in missing.targets if target.startswith(("/", ".."))]
