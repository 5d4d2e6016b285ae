"""A pytest plugin that collects what an editor's test panel shows: the tree of tests and failure messages.

`-p panel --panel FILE` writes it as JSON. VS Code's own plugin takes the same from the same hooks: each item's parents
when tests are collected, and `report.longreprtext` when one has failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

told: dict[str, object] = {"tests": {}, "messages": {}, "imports_torch": False}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the output file."""
    parser.addoption("--panel", type=Path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The path to each test through the tree."""
    above = {item.nodeid: [node.name for node in item.listchain() if node.name][-3:] for item in session.items}
    told.update(tests=above, imports_torch="torch" in sys.modules)


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> None:
    """What the panel shows next to a test that has failed."""
    if report.when == "call" and report.failed:
        told["messages"][report.nodeid] = report.longreprtext  # type: ignore[index]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file."""
    session.config.option.panel.write_text(json.dumps(told), encoding="utf-8")
