"""The book's site, built once for all tests of a run that look at it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from labstaff.site import build_site


@cache
def _build(folder: Path) -> Path:
    build_site(ROOT, folder)
    return folder


def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; built by the first test that asks for it."""
    return _build(tmp_path_factory.getbasetemp() / "site")
