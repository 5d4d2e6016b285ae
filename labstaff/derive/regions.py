"""Replaces the derived part of a page: the lines between two HTML comments."""

from __future__ import annotations

import re


def with_region(text: str, begin: str, end: str, derived: str, page: str) -> str:
    """Return the `text` of `page` with `derived`, whole lines, between the lines `begin` and `end`.

    Raises:
        ValueError: the comments are not there, once each.
    """
    region = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(region.findall(text)) != 1:
        raise ValueError(f"{page}: expected one region between {begin} and {end}")
    return region.sub(lambda _: f"{begin}\n{derived}{end}", text)
