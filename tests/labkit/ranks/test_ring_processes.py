"""Lab 11 in real processes over gloo: what `lab ring` prints for the solution, and why a rank failed."""

from __future__ import annotations

import re
import signal
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.labs.catalog import find_lab, solution_file
from labkit.ranks.command import Setting, rows
from labkit.ranks.processes import RankFailed, _cause, load_function, run_processes
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


def test_lab_ring_on_the_solution():
    arguments = ["ring", "11", "--ranks", "4", "--seq-len", "1024", "--full", "--src", str(SOLUTION.parent)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stdout
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    assert len(lines) == 8
    for name, ranks, error, sent, formula, *peak in lines:
        assert float(error) < 1e-5, name
        assert sent == formula
        assert (ranks == "4") == (sent != "0")
        if ranks == "4":
            assert float(peak[-1]) <= 0.35, "the share of one rank's memory that each of four needs"


@pytest.mark.parametrize("name", ["ring_attention_forward", "all_gather_attention", "ulysses_attention"])
def test_processes_give_the_results_of_threads(name):
    options = {"causal": True, "layout": "zigzag"}
    function = load_function(SOLUTION, name)
    threads = run_ranks(lambda comm, *given: function(comm, *given, **options), shards(4))
    processes = run_processes(SOLUTION, name, options, shards(4))
    for tensors, traffic, process in zip(threads.results, threads.traffic, processes, strict=True):
        assert (process.traffic.messages, process.traffic.sent_bytes) == (traffic.messages, traffic.sent_bytes)
        assert process.traffic.received_bytes == traffic.received_bytes
        assert all(torch.equal(x, y) for x, y in zip(tensors, process.tensors, strict=True))


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
    return comm.all_gather(q) if comm.rank == 0 else q

def untouched(comm, q, k, v):
    raise NotImplementedError()
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"rank 1: ValueError: of rank 1 in line 6"),
        ("ends", r"rank 1 ended with status 7"),
        ("waits", r"rank 0: TimeoutError: no message within 2 s: ranks that wait for one another never end in line 15"),
        ("untouched", r"rank \d: not implemented yet in line \d+: raise NotImplementedError"),
    ],
)
def test_a_rank_that_fails_ends_the_run_without_a_warning_of_torchs(tmp_path, caplog, name, message):
    file = tmp_path / "failing.py"
    file.write_text(FAILING, encoding="utf-8")
    with pytest.raises(RankFailed, match=message):
        run_processes(file, name, {}, shards(2), wait_seconds=2 if name == "waits" else 300)
    assert not caplog.records


def test_a_rank_ended_while_it_wrote_is_not_the_cause(tmp_path):
    (tmp_path / "0.txt").touch()
    (tmp_path / "1.txt").write_text("ValueError: of rank 1", encoding="utf-8")
    ended = [SimpleNamespace(exitcode=status) for status in (-signal.SIGTERM, 1)]
    assert _cause(ended, tmp_path) == "rank 1: ValueError: of rank 1"


def test_settings_that_do_not_fit_are_one_line():
    result = CliRunner().invoke(app, ["ring", "11", "--ranks", "3", "--seq-len", "100"])
    assert result.exit_code == 1
    assert re.search(r"multiple of 6", str(result.exception) + result.stdout)
    assert CliRunner().invoke(app, ["ring", "05"]).exit_code == 1


def test_what_is_not_written_is_not_called(tmp_path):
    file = tmp_path / "ring_attention.py"
    names = ("ring_attention_forward", "all_gather_attention", "ulysses_attention", "ring_attention_backward")
    file.write_text("\n".join(f"def {name}(*args):\n    raise NotImplementedError()" for name in names), "utf-8")
    result = CliRunner().invoke(app, ["ring", "11", "--src", str(tmp_path)])
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        [n, "not", "implemented", "yet"] for n in names
    ]
    file.write_text("def broken(:\n    pass\n", "utf-8")
    result = CliRunner().invoke(app, ["ring", "11", "--src", str(tmp_path)])
    assert "ring_attention.py:1: " in str(result.exception) + result.stdout


def test_a_wrong_row_is_marked(tmp_path):
    right, wrong = "source = (comm.rank - step) % comm.world_size", "source = comm.rank"
    text = SOLUTION.read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "ring_attention.py").write_text(text.replace(right, wrong), encoding="utf-8")
    found = list(rows(tmp_path / "ring_attention.py", Setting(2, 32, 2, 2, 8, "zigzag", True)))
    of_two = {line.split()[0]: is_right for line, is_right in found if line.split()[1] == "2"}
    assert {name for name, is_right in of_two.items() if is_right} == {"all_gather_attention", "ulysses_attention"}
    assert all(line.endswith("✗") != is_right for line, is_right in found)
