"""A pytest plugin: one run of a suite at many seeds, with what each comparison used of its limit, seed by seed.

Collecting a suite and loading an answer cost more than most suites' tests, so they are done once for many seeds. What
draws nothing from the seed is the same at each: it is run at the first one only, and there only when asked for. Tests
of memory and work draw numbers, but count bytes and tiles, which follow from sizes: at the first seed of a run only.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from labkit.suite.results import Kind, TestResult
from labkit.testing import margins

SEEN = pytest.StashKey["_Seen"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where results go to, at which seeds, and whether all tests are run at the first one."""
    group = parser.getgroup("attention labs, calibrated")
    group.addoption("--margins", type=Path, metavar="FILE", help="append a line of JSON for each seed to this file")
    group.addoption("--seeds", default="", metavar="SEED,SEED", help="run what draws from the seed at each of these")
    group.addoption("--whole", action="store_true", help="run all tests at the first seed")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing was seen yet."""
    config.stash[SEEN] = _Seen()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the tests seed by seed, and write down what came of each when it is done."""
    option = session.config.option
    drawn = [item for item in session.items if "rng" in getattr(item, "fixturenames", ())]
    numbers = [item for item in drawn if not _is_small(item)]
    for place, seed in enumerate(map(int, option.seeds.split(","))):
        option.seed = seed
        _run(numbers if place else session.items if option.whole else drawn)
        with option.margins.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seed": seed, **session.config.stash[SEEN].told()}) + "\n")
        session.config.stash[SEEN] = _Seen()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Keep what the test's comparisons used of their limits."""
    margins.kept = []
    try:
        return (yield)
    finally:
        item.config.stash[SEEN].enter("::".join(item.nodeid.split("::")[1:]), margins.kept)
        margins.kept = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what was refused, once labkit's plugin has made a verdict of it."""
    report = yield
    verdicts = [value for name, value in report.user_properties if name == "result" and isinstance(value, TestResult)]
    item.config.stash[SEEN].failed += [
        f"{verdict.test}: {' / '.join(verdict.lines)}" for verdict in verdicts[-1:] if not verdict.passed
    ]
    return report


def _run(items: list[pytest.Item]) -> None:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.stash = pytest.Stash()  # nothing of an earlier seed
        if isinstance(item, pytest.Function):
            item._initrequest()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _is_small(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("kind")
    return marker is not None and marker.args[0] == Kind.SMALL


class _Seen:
    """What was seen at one seed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._worst: dict[tuple[str, str, str], float] = {}

    def enter(self, test: str, kept: list[margins.Margin]) -> None:
        """Of all parameters of a test the worst counts."""
        for what, kind, share in kept:
            key = (test.split("[")[0], what, kind)
            self._worst[key] = max(share, self._worst.get(key, 0.0))

    def told(self) -> dict[str, Any]:
        return {"failed": self.failed, "margins": [[*key, share] for key, share in self._worst.items()]}
