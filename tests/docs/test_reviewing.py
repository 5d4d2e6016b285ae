"""The worked example of `docs/reviewing.md`: each step fails on the versions it is for, and on no right one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from labkit.labs.catalog import ROOT

PAGE = (ROOT / "docs" / "reviewing.md").read_text(encoding="utf-8")
WRONG, *STEPS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHAPE, VALUES, REFUSAL, BYTES = STEPS
MENDED = WRONG.replace("D.argmin(1)[closer]", "D.argmin(1)[closer] + start").replace(
    "    best =", "    if not len(K):\n        raise ValueError('no keys')\n    best ="
)


def failing(version):
    """The steps that fail on `version`, with the variables of the steps before them."""
    names = {"np": np, "pytest": pytest, "rng": np.random.default_rng(0)}
    exec(version, names)
    failed = []
    for step in STEPS:
        try:
            exec(step, names)
        except (AssertionError, pytest.fail.Exception):
            failed.append(step)
    return failed


def test_steps_find_the_two_mistakes():
    assert failing(WRONG) == [VALUES, REFUSAL]


@pytest.mark.parametrize("block", ["64", "5"])
def test_a_right_version_passes(block):
    assert failing(MENDED.replace("block=64", f"block={block}")) == []


def test_only_the_bound_on_bytes_finds_the_whole_matrix():
    assert failing(MENDED.replace("    best =", "    block = len(K)\n    best =", 1)) == [BYTES]
