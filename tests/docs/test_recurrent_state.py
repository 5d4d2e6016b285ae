"""Chapter 15's numbers: those by hand are what `lab model` and Lab 15's solution compute, and those of the figures."""

from __future__ import annotations

import json
import re

from benchmarks.harness import solution_module
from labkit.bench.cache_report import summed
from labkit.bench.model_config import PUBLISHED, layers_of, read_config
from labkit.labs.catalog import ROOT

TEXT = (ROOT / "docs" / "15_recurrent_state.md").read_text(encoding="utf-8")
CONFIGS = {
    "Qwen3-Next": "qwen3-next-80b-a3b",
    "Kimi Linear": "kimi-linear-48b-a3b",
    "Nemotron": "nemotron-3-nano-30b-a3b",
    "Qwen3.5": "qwen3.5-397b-a17b",
    "Kimi K3": "kimi-k3",
}


def rows_of(first_column: str) -> list[list[str]]:
    """The cells of the table whose head begins so, without its head."""
    table = TEXT.partition(f"\n| {first_column} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_a_copy_of_all_states_is_that_of_lab_model() -> None:
    rows = rows_of("model")
    assert len(rows) == len(CONFIGS)
    for (name, counts, *numbers), (begin, config) in zip(rows, CONFIGS.items(), strict=True):
        layers = layers_of(read_config(PUBLISHED / f"{config}.json"))
        totals = summed(layers, 1)
        fixed, further = totals["fixed"], totals["further token"]
        assert name.startswith(begin)
        assert counts == f"{sum(layer.state > 0 for layer in layers)} of {len(layers)}"
        assert numbers == [f"{fixed:,}", f"{further:,}", f"{fixed / further:,.0f} tokens"]


def test_three_ways_are_those_of_the_solution() -> None:
    replay_cost = solution_module("15").replay_cost
    for method, row in zip(("align", "all", "ring"), rows_of("method"), strict=True):
        stored, again = replay_cost(method, 8192, 2_097_152, 32_768, 64, 2048, 5000, 4, 2)
        assert row[0].startswith(f"*{method}*")
        assert row[3] == f"{stored:,}"
        assert sum(map(int, re.findall(r"\d+", row[4]))) == again


def test_hits_are_those_of_the_figure() -> None:
    data = json.loads((ROOT / "docs" / "figures" / "15_hits.json").read_text(encoding="utf-8"))
    columns = [data["intervals"].index(every) for every in (512, 4096, 16384)]
    for row, (name, found) in zip(rows_of("cache"), data["found"].items(), strict=True):
        shares = [found["attention alone"], *(found["intervals"][at] for at in columns)]
        shares += [found["at the end of each prompt"], found["and where prompts part"]]
        assert row == [name, *(f"{share} %" for share in shares)]


def test_worked_examples_are_those_of_the_solution() -> None:
    lab = solution_module("15")
    assert lab.checkpoint_plan(10, 2, 1, 2)[0] == [4, 8]
    groups = [("attention", 1, set(range(64))), ("state", 32, {0, 1})]
    assert lab.longest_common_hit(groups, 64) == 32
