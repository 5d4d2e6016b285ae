"""The interactive tile loop's counts and numbers are those of the simulated machine and of its closed forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.labs.catalog import ROOT
from labkit.testing.attention.reference import attention
from labkit.testing.tiles import io_formulas as forms
from labstaff import io_blocks
from tests.docs.tile_loop_reference import Run, Setting, answer_of, naive, row_states, run

FOLDER = ROOT / "docs" / "_static" / "tile_loop"
SHAPES = [
    (8, 8, 4, 4, 4, 2),
    (16, 16, 4, 4, 4, 4),
    (13, 13, 3, 3, 5, 4),
    (12, 12, 2, 5, 3, 8),
    (9, 9, 4, 2, 2, 9),
    (7, 7, 1, 1, 16, 3),
    (5, 5, 2, 2, 1, 1),
    (10, 23, 3, 4, 4, 3),
    (23, 10, 3, 4, 3, 4),
    (3, 20, 2, 2, 2, 6),
    (1, 1, 1, 1, 1, 1),
]
SETTINGS = [
    Setting(order, *shape, causal) for order in ("queries", "keys") for shape in SHAPES for causal in (False, True)
]
LARGE = [
    (4096, 4096, 64, 64, 72, 16),
    (4096, 4096, 64, 64, 10, 104),
    (4095, 4095, 128, 128, 100, 33),
    (1000, 3000, 32, 64, 48, 7),
    (4096, 4096, 256, 256, 4096, 4096),
]
TRACE = """s => {
  const loop = tileLoop.makeLoop(s);
  const steps = [];
  for (let p = 0; p <= loop.last; p++) steps.push(loop.at(p));
  return {...loop, positions: steps, beyond: loop.at(loop.last + 1)};
}"""
MISTAKES = {
    "the columns of the state": ("(dV + 2)", "(dV + 1)"),
    "a state loaded on the first visit": ("(visits - begun)", "visits"),
    "Q loaded in every tile": ("Q: rowStart(i) * d", "Q: rowStart(i) * d * rowBlocks"),
    "K kept beside S": ('["make", "S", rows, columns], ...drop("K")', '["make", "S", rows, columns]'),
    "no column for the maxima": ('["make", "row maxima", rows, 1],', '["make", "row maxima", 0, 1],'),
    "the product forgotten": ('["make", "P V", rows, dV],', ""),
    "tiles counted to the diagonal of blocks": (
        "(causal ? Math.min(rowStart(i + 1), nKeys)",
        "(causal ? Math.min(i * blockK + 1, nKeys)",
    ),
    "columns above the diagonal": ("Math.floor((j * blockK) / blockQ)", "Math.ceil((j * blockK) / blockQ)"),
    "elements of two bytes": ("ELEMENT_BYTES = 4", "ELEMENT_BYTES = 2"),
    "capacity not to be filled": ("> settings.sramBytes", ">= settings.sramBytes"),
}


class Page:
    """The page's functions without a browser; `change` edits their source first."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        import quickjs

        self._context = quickjs.Context()
        for name in ("counts.js", "numbers.js"):
            self._context.eval(change((FOLDER / name).read_text(encoding="utf-8")))

    def __call__(self, function: str, *arguments: Any) -> Any:
        """What the JavaScript `function` returns for arguments that JSON can hold."""
        given = ", ".join(json.dumps(argument) for argument in arguments)
        return json.loads(self._context.eval(f"JSON.stringify(({function})({given}))"))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page()


def check_trace(page: Page, setting: Setting, ran: Run) -> None:
    """Fail unless the page's steps are what the machine did, moment by moment."""
    trace = page(TRACE, setting.as_javascript())
    positions, moments = trace["positions"], ran.machine.moments
    told = [moment for position in positions for moment in position["moments"]]
    kept = [{"inUse": m.in_use, "loaded": m.loaded, "stored": m.stored} for m in moments]
    assert [{key: moment[key] for key in kept[0]} for moment in told] == kept if kept else told == []
    done, water = 0, 0
    for position in positions[1:]:
        of_step = moments[done : (done := done + len(position["moments"]))]
        water = max([water, *(moment.in_use for moment in of_step)])
        assert position["highWater"] == water
        assert position["moved"]["total"] == position["moved"]["loaded"] + position["moved"]["stored"]
        if position["overflow"] is None:
            fullest = [moment for moment in of_step if moment.in_use == position["inUse"]][-1]
            alive = position["alive"].values()
            assert position["inUse"] == max(moment.in_use for moment in of_step)
            assert sorted((tile["rows"], tile["columns"]) for tile in alive) == list(fullest.shapes)
            assert (position["moved"]["loaded"], position["moved"]["stored"]) == (
                of_step[-1].loaded,
                of_step[-1].stored,
            )
    last = positions[-1]
    assert (last["moved"]["loaded"], last["moved"]["stored"]) == (ran.machine.loaded, ran.machine.stored)
    assert last["highWater"] == ran.machine.high_water
    assert bool(last["overflow"]) == bool(ran.overflow) == (not trace["fits"])
    assert [position["overflow"] for position in positions[:-1]] == [None] * (len(positions) - 1)
    assert trace["beyond"] == last


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.causal], ids=str)
def test_each_step_is_what_lab_04s_answer_does(page: Page, setting: Setting) -> None:
    check_trace(page, setting, run(setting, answer_of(setting.order)))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_each_step_is_what_the_machine_counts(page: Page, setting: Setting) -> None:
    ran = run(setting)
    check_trace(page, setting, ran)
    moved = page("s => tileLoop.makeLoop(s).total", setting.as_javascript())
    assert {name: ran.machine.loaded_from(array) for name, array in ran.inputs.items()} == {n: moved[n] for n in "QKV"}
    assert moved["loaded"] == ran.machine.loaded
    assert moved["stored"] == ran.machine.stored
    wanted = attention(*(array.numpy() for array in ran.inputs.values()), causal=setting.causal).output
    np.testing.assert_allclose(ran.output.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("order", ["queries", "keys"])
@pytest.mark.parametrize("causal", [False, True])
def test_an_sram_too_small_stops_where_the_machine_stops(page: Page, order: str, causal: bool) -> None:
    setting = Setting(order, 5, 5, 2, 2, 3, 2, causal)
    needs = run(setting).machine.high_water
    assert page("s => tileLoop.makeLoop(s).needs", setting.as_javascript()) == needs
    for sram_bytes in range(4, needs + 8, 4):
        small = Setting(order, 5, 5, 2, 2, 3, 2, causal, sram_bytes)
        ran = run(small)
        check_trace(page, small, ran)
        assert bool(ran.overflow) == (sram_bytes < needs)
        if ran.overflow:
            overflow = page(
                "s => { const l = tileLoop.makeLoop(s); return l.at(l.last).overflow; }", small.as_javascript()
            )
            asked, in_use = re.search(r"needs ([\d,]+) B .* but ([\d,]+) B of", ran.overflow).groups()
            assert (overflow["asked"], overflow["inUse"]) == (int(asked.replace(",", "")), int(in_use.replace(",", "")))
            assert f"({overflow['rows']}, {overflow['columns']})" in ran.overflow


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_count_is_found(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    assert right in (FOLDER / "counts.js").read_text(encoding="utf-8")
    page = Page(lambda source: source.replace(right, wrong))
    with pytest.raises(AssertionError):
        check_some(page)


def check_some(page: Page) -> None:
    """A few settings that fit to the last byte."""
    for order in ("queries", "keys"):
        for shape in SHAPES[:4]:
            needs = run(Setting(order, *shape, causal=True)).machine.high_water
            setting = Setting(order, *shape, causal=True, sram_bytes=needs)
            check_trace(page, setting, run(setting))


def test_the_same_check_passes_without_a_mistake(page: Page) -> None:
    check_some(page)


class TestForms:
    @pytest.mark.parametrize("shape", SHAPES + LARGE, ids=str)
    def test_totals_and_forms_are_pythons(self, page: Page, shape: tuple[int, ...]) -> None:
        pairs = {"queries": forms.queries_outside_traffic, "keys": forms.keys_outside_traffic}
        for order, form in pairs.items():
            given = Setting(order, *shape).as_javascript()
            wanted = list(form(*shape))
            assert page("s => [tileLoop.forms[s.order](s)].flatMap(t => [t.loaded, t.stored])", given) == wanted
            assert page("s => [tileLoop.makeLoop(s).total].flatMap(t => [t.loaded, t.stored])", given) == wanted
        moved = page("s => tileLoop.standard(s)", Setting("queries", *shape, causal=True).as_javascript())
        assert (moved["loaded"], moved["stored"]) == tuple(forms.naive_traffic(*shape))
        assert moved["matrixBytes"] == shape[0] * shape[1] * 4

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_standard_attention_needs_what_the_machine_says(self, page: Page, shape: tuple[int, ...]) -> None:
        setting = Setting("queries", *shape)
        machine = run(setting, naive).machine
        moved = page("s => tileLoop.standard(s)", setting.as_javascript())
        assert (moved["needs"], moved["total"]) == (machine.high_water, machine.traffic)

    @pytest.mark.parametrize("d", [1, 3, 16, 64, 256])
    def test_the_largest_blocks_are_pythons(self, page: Page, d: int) -> None:
        pairs = {"queries": io_blocks.queries_outside_blocks, "keys": io_blocks.keys_outside_blocks}
        for order, blocks in pairs.items():
            for sram_bytes in (16, 100, 512, 1_111, 65_536, 233_472):
                found = page("(...a) => tileLoop.blocksThatFit(...a)", order, sram_bytes, d)
                try:
                    assert found == list(blocks(sram_bytes, d))
                except ValueError:
                    assert found is None

    def test_chapter_4s_setting_fills_its_sram(self, page: Page) -> None:
        setting = Setting("queries", 4096, 4096, 64, 64, 72, 16, sram_bytes=65_536)
        loop = page("s => tileLoop.makeLoop(s)", setting.as_javascript())
        assert (loop["needs"], loop["fits"], loop["total"]["total"]) == (64_864, True, 121_634_816)

    @pytest.mark.parametrize("round_", [0, 1, 577, 4095])
    def test_a_round_far_inside_is_found(self, page: Page, round_: int) -> None:
        setting = Setting("queries", 4096, 4096, 2, 2, 1, 1, causal=True).as_javascript()
        tiles_before, tiles = round_ * (round_ + 1) // 2, 4096 * 4097 // 2
        begin = 3 * tiles_before + 2 * round_ + 1
        loop = "(s, ...at) => { const l = tileLoop.makeLoop(s); return [l.steps, ...at.map(l.at)]; }"
        steps, *here = page(loop, setting, begin, begin + 1, begin + 3 * (round_ + 1), begin + 3 * (round_ + 1) + 1)
        assert steps == 3 * tiles + 2 * 4096
        found = [(at["i"], at["j"], at["phase"], at["tilesDone"] - tiles_before) for at in here]
        ends = [(round_, round_, "output", round_), (round_, round_ + 1, "end", round_ + 1)]
        assert found == [(round_, 0, "begin", 0), (round_, 0, "scores", 0), *ends]


class TestNumbers:
    @pytest.mark.parametrize("setting", [s for s in SETTINGS if s.order == "queries"], ids=str)
    def test_states_of_a_row_are_the_definitions(self, page: Page, setting: Setting) -> None:
        given = setting.as_javascript()
        for row in {0, setting.n_queries // 2, setting.n_queries - 1}:
            wanted = row_states(setting, row)
            for j, (m, l, O) in enumerate(wanted):
                state = page("(s, r, j) => tileLoop.makeRow(r, s).tile(j)", given, row, j)
                assert state["m"] == pytest.approx(m, rel=1e-12, abs=1e-12)
                assert state["l"] == pytest.approx(l, rel=1e-12)
                assert state["O"] == pytest.approx(list(O), rel=1e-12, abs=1e-12)
                assert page("(s, r, j) => tileLoop.makeRow(r, s).after(j + 1)", given, row, j)["l"] == state["l"]
            _, l, O = wanted[-1]
            assert page("(s, r) => tileLoop.makeRow(r, s).whole()", given, row) == pytest.approx(
                list(O / l), rel=1e-12, abs=1e-12
            )

    def test_no_state_before_the_first_tile(self, page: Page) -> None:
        row = page("s => tileLoop.makeRow(0, s).after(0)", SETTINGS[0].as_javascript())
        assert row == {"m": None, "l": 0, "O": [0, 0, 0, 0]}  # JSON has no infinity

    def test_the_example_moves_its_maximum(self, page: Page) -> None:
        maxima = [m for m, _, _ in row_states(Setting("queries", 16, 16, 4, 4, 4, 4), 15)]
        assert len(set(maxima)) >= 2
