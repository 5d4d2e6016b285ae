"""The function that grows through chapters 1, 3, 4 and 5: every form is exact and takes the memory in its row."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from labkit.labs.catalog import ROOT
from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays

CHAPTERS = ["01_gpu_memory_hierarchy", "03_online_softmax", "04_tiling_and_blocking", "05_flash_attention"]
TEXTS = {chapter: (ROOT / "docs" / f"{chapter}.md").read_text(encoding="utf-8") for chapter in CHAPTERS}
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FORM = re.compile(r"^def (naive|safe|online|tiled)\(", re.MULTILINE)
ROW = re.compile(
    r"^\| `(?P<form>\w+)`(?:, (?P<blocks>[^|]*))? \| (?P<short>[\d.]+) \| (?P<long>[\d.]+) \|", re.MULTILINE
)
ROWS = [(chapter, *row.groups()) for chapter, text in TEXTS.items() for row in ROW.finditer(text)]
HALF_A_LAST_DIGIT = 0.005 * 2**20


def forms(until: str = CHAPTERS[-1]) -> dict[str, Callable[..., Any]]:
    """Every form by name, from the chapters' listings up to the named chapter."""
    names: dict[str, Any] = {}
    for chapter in CHAPTERS[: CHAPTERS.index(until) + 1]:
        for block in CODE.findall(TEXTS[chapter]):
            if FORM.search(block):
                exec(block, names)
    return names


def blocks_in(words: str | None) -> tuple[int, ...]:
    """The block sizes that a row of a table names: `block_k` = 128, or 64 × 64."""
    return tuple(int(number) for number in re.findall(r"\d+", words or ""))


def random_inputs(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, n, 64), dtype=np.float32)


def test_every_chapter_has_its_rows() -> None:
    shown = [(chapter[:2], form) for chapter, form, *_ in ROWS]
    assert set(shown) == {
        *[("01", "naive")],
        *[("03", form) for form in ("naive", "safe", "online")],
        *[("04", form) for form in ("naive", "safe", "online", "tiled")],
        *[("05", "tiled")],
    }


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_form_is_exact(chapter: str) -> None:
    Q, K, V = random_inputs(200).astype(np.float64)
    E = np.exp(Q @ K.T / 8)
    known = forms(chapter)
    for form, blocks in {"naive": (), "safe": (), "online": (33,), "tiled": (48, 33)}.items():
        if form in known:
            got = known[form](Q, K, V, *blocks)
            O, L = got if isinstance(got, tuple) else (got, np.log(E.sum(axis=1, keepdims=True)))
            np.testing.assert_allclose(O, E @ V / E.sum(axis=1, keepdims=True), rtol=1e-12, atol=1e-14, err_msg=form)
            np.testing.assert_allclose(L, np.log(E.sum(axis=1, keepdims=True)), rtol=1e-12, atol=1e-14, err_msg=form)


@pytest.mark.parametrize(("chapter", "form", "blocks", "short", "long"), ROWS)
def test_every_row_is_what_the_code_allocates(chapter: str, form: str, blocks: str, short: str, long: str) -> None:
    for n, shown in ((1024, short), (4096, long)):
        measured = peak_bytes(chapter == CHAPTERS[-1], form, blocks_in(blocks), n)
        assert abs(measured - float(shown) * 2**20) <= HALF_A_LAST_DIGIT + BOOKKEEPING_BYTES, measured / 2**20


@cache
def peak_bytes(with_log_sum_exp: bool, form: str, blocks: tuple[int, ...], n: int) -> int:
    """Peak bytes of a form without its inputs; chapter 5 defines `tiled` again, with a second result."""
    function = forms(CHAPTERS[-1] if with_log_sum_exp else CHAPTERS[-2])[form]
    function(*random_inputs(1), *blocks)  # a first call allocates more
    return measure_arrays(function, *random_inputs(n), *blocks, warm=False).peak_bytes


def test_chapter_5_computes_any_weight_again_from_its_score(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (block for block in CODE.findall(TEXTS[CHAPTERS[-1]]) if "P = np.exp(S - L)" in block)
    exec(example, forms())
    assert capsys.readouterr().out == "True True\n"
