"""One version: in pyproject.toml, CHANGELOG.md and CITATION.cff, and as `lab --version` prints it."""

from __future__ import annotations

import re
import tomllib

from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.labs.catalog import ROOT, find_labs

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NUMBERS = {13: "thirteen", 14: "fourteen", 15: "fifteen"}


def test_change_log_begins_with_this_version_and_its_date():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) \((\S+)\)$", changes, re.MULTILINE)
    assert newest[1] == VERSION
    assert f"\nversion: {VERSION}\n" in citation
    assert f"\ndate-released: {newest[2]}\n" in citation


def test_citation_counts_the_labs():
    labs = [lab for lab in find_labs(ROOT) if not lab.draft]
    assert f"{NUMBERS[len(labs)]} labs" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_lab_prints_the_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"Attention Labs {VERSION}\n"
