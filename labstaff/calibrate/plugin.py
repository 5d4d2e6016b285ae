"""A pytest plugin that writes the share of its limit that each comparison of a run used."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from labkit.testing import margins

WORST = pytest.StashKey[dict[tuple[str, str, str], float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that the shares are written to."""
    parser.addoption("--margins", type=Path, metavar="FILE", help="write the share of each limit used to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Start with no shares."""
    config.stash[WORST] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Collect the shares of one test; of all its parameters the worst counts."""
    margins.kept = []
    try:
        return (yield)
    finally:
        test = "::".join(item.nodeid.split("::")[1:]).split("[")[0]
        worst = item.config.stash[WORST]
        for what, kind, share in margins.kept:
            worst[test, what, kind] = max(share, worst.get((test, what, kind), 0.0))
        margins.kept = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write a list of [test, what is compared, unit, share]."""
    shares = [[*key, share] for key, share in session.config.stash[WORST].items()]
    session.config.option.margins.write_text(json.dumps(shares), encoding="utf-8")
