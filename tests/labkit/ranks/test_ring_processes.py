"""Lab 11 in real processes over gloo: what `lab ring` prints of the solution, and what a failing rank says."""

from __future__ import annotations

import re

import pytest
import torch
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.labs.catalog import find_lab, solution_file
from labkit.ranks.command import rows
from labkit.ranks.processes import Job, RankFailed, load_function, run_processes
from labkit.ranks.threads import run_ranks
from labkit.testing.rings import cut, positions

pytestmark = pytest.mark.slow

SOLUTION = solution_file(find_lab("11"))
N_TOKENS = 48


def shards(world_size, heads=4):
    """Each rank's q, k and v, in zigzag."""
    generator = torch.Generator().manual_seed(3)
    places = positions(N_TOKENS, world_size, "zigzag")
    whole = [torch.randn(heads, N_TOKENS, 8, generator=generator) for _ in range(3)]
    return [list(each) for each in zip(*(cut(x, places) for x in whole), strict=True)]


@pytest.fixture(scope="module")
def printed():
    """What `lab ring` prints of the solution at 4,096 tokens on 4 ranks, without a mask."""
    result = CliRunner().invoke(app, ["ring", "11", "--ranks", "4", "--full", "--src", str(SOLUTION.parent)])
    assert result.exit_code == 0, result.stdout
    return result.stdout.splitlines()


def test_every_line_is_right(printed):
    lines = [line.split() for line in printed[2:]]
    assert len(lines) == 8
    for name, ranks, error, sent, formula, *_ in lines:
        assert float(error) < 1e-5, name
        assert sent == formula
        assert (ranks == "4") == (sent != "0")


def test_a_rank_of_four_needs_a_third_of_one(printed):
    share = {line.split()[0]: float(line.split()[-1]) for line in printed[2:] if " 4  " in line}
    assert share["ring_attention_forward"] <= 0.35
    assert share["ulysses_attention"] <= 0.35


@pytest.mark.parametrize("name", ["ring_attention_forward", "all_gather_attention", "ulysses_attention"])
def test_processes_do_what_threads_do(name):
    options = {"causal": True, "layout": "zigzag"}
    function = load_function(SOLUTION, name)
    threads = run_ranks(lambda comm, *given: function(comm, *given, **options), shards(4))
    processes = run_processes(Job(SOLUTION, name, options), shards(4))
    assert processes.traffic == threads.traffic
    for one, other in zip(threads.results, processes.results, strict=True):
        for x, y in zip(one, other, strict=True):
            assert torch.equal(x, y)


FAILING = """
import os

def raises(comm, q, k, v):
    if comm.rank == 1:
        raise ValueError("of rank 1")
    return comm.all_gather(q)

def ends(comm, q, k, v):
    if comm.rank == 1:
        os._exit(7)
    return comm.all_gather(q)

def waits(comm, q, k, v):
    return comm.send_recv((q,), comm.rank, comm.rank).wait() if comm.rank else comm.all_gather(q)

def untouched(comm, q, k, v):
    raise NotImplementedError()
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"rank 1: ValueError: of rank 1 in line 6"),
        ("ends", r"rank 1 ended with status 7"),
        ("waits", r"did not end in time|rank \d: RuntimeError"),
        ("untouched", r"rank \d: not implemented yet in line \d+: raise NotImplementedError"),
    ],
)
def test_a_rank_that_fails_ends_the_run(tmp_path, name, says):
    file = tmp_path / "failing.py"
    file.write_text(FAILING, encoding="utf-8")
    with pytest.raises(RankFailed, match=says):
        run_processes(Job(file, name, {}), shards(2), seconds=20 if name != "waits" else 3)


def test_settings_that_do_not_fit_are_one_line():
    result = CliRunner().invoke(app, ["ring", "11", "--ranks", "3", "--seq-len", "100"])
    assert result.exit_code == 1
    assert re.search(r"multiple of 6", str(result.exception) + result.stdout)
    assert CliRunner().invoke(app, ["ring", "05"]).exit_code == 1


def test_a_wrong_answer_is_marked(tmp_path):
    from labkit.ranks.command import Setting

    text = SOLUTION.read_text(encoding="utf-8")
    (tmp_path / "ring_attention.py").write_text(
        text.replace("source = (comm.rank - step) % comm.world_size", "source = comm.rank"), encoding="utf-8"
    )
    told = list(rows(tmp_path / "ring_attention.py", Setting(2, 32, 2, 2, 8, "zigzag", True)))
    right = {row.name for row in told if row.is_right and row.ranks == 2}
    assert right == {"all_gather_attention", "ulysses_attention"}
    assert all("✗" in row.line() for row in told if row.name.startswith("ring_") and row.ranks == 2)
