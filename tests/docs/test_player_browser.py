"""The course's player in a page that is not the tile loop's: it plays what it knows nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.labs.catalog import ROOT
from tests.docs.player_page import go_to, place, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLAYER = ROOT / "docs" / "_static" / "player" / "player"

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ANOTHER = """<!doctype html><link rel="stylesheet" href="{player}.css"><body class="pl"><p id="drawn">?</p>
<script src="{player}.js"></script><script>
  const drawn = document.getElementById("drawn");
  const link = stepPlayer.keepInAddress({{
    read: (given) => player.goTo(Number(given.get("rank"))),
    write: () => ({{ rank: player.at() }}),
  }});
  const player = stepPlayer.makePlayer({{
    show(at) {{ drawn.textContent = `rank ${{at % 4}}`; link.save(); return `Step ${{at}} round the ring.`; }},
    last: () => 11,
    leap: (at, by) => (Math.floor(at / 4) + by) * 4,
    leapName: "round",
    picture: drawn,
    keysIn: document.body,
  }});
  document.body.append(player.element);
  player.goTo(Number((link.given() || new URLSearchParams()).get("rank")));
</script>"""


@pytest.fixture
def ring(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page, whose link says rank 3."""
    file = tmp_path / "ring.html"
    file.write_text(ANOTHER.format(player=PLAYER.as_uri()), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1100, "height": 1300})
    page.goto(f"{file.as_uri()}#rank=3")
    yield page
    page.close()


def test_it_plays_from_where_the_link_says(ring: Page) -> None:
    assert (shown(ring, "place"), ring.locator("#drawn").inner_text()) == ("3 / 11", "rank 3")
    ring.keyboard.press("ArrowRight")
    assert (shown(ring, "said"), ring.locator("#drawn").inner_text()) == ("Step 4 round the ring.", "rank 0")
    ring.wait_for_function("location.hash === '#rank=4'")
    go_to(ring, "#rank=7")
    assert place(ring) == (7, 11)


def test_its_buttons_and_slider_go_everywhere(ring: Page) -> None:
    for name, want in [("A round on", 4), ("A round back", 0), ("To the end", 11), ("A step back", 10)]:
        ring.get_by_role("button", name=name).click()
        assert place(ring) == (want, 11), name
    ring.get_by_role("slider", name="Step").fill("5")
    assert place(ring) == (5, 11)
    go_to(ring, "#rank=99")
    assert place(ring) == (11, 11)
    assert ring.get_by_role("button", name="A step on").is_disabled()
