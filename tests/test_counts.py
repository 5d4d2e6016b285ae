"""A lab's board of counts: a student's runs beside the course's, kept; nothing of it decides a point."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from rich.console import Console
from student import House

from labkit.commands.counts import NARROW, print_rows, rows
from labkit.labs.catalog import find_lab
from labkit.suite.counts import COLUMNS, NoBoard, Run, best, board_digest, kept_runs, read_board

MANIFEST = """
title = "Counted"
summary = "Something to count."
module = "counted"
hours = 1
[[tasks]]
name = "serve"
signature = "serve(trace)"
tests = "TestServe"
points = 10
hints = ["count"]
"""
SUITE = """
import pytest
from counted import serve
from labkit.testing.compare import require

class TestServe:
    @pytest.mark.board
    @pytest.mark.parametrize("trace", ["chat", "documents"])
    def test_board(self, board, trace):
        counts = serve(trace)
        board(counts)
        require(counts["peak_blocks"] <= 8, "block 5 belongs to request 2, which is still served")

    def test_else(self):
        assert serve("chat")["in_time"] < 7
"""
COUNTED = {"in_time": 5, "bytes_read": 9000, "tokens": 4, "prefix_tokens": 12, "again": 0}
COUNTED |= {"peak_blocks": 8}
BOARD = {
    "traces": {"chat": "5 requests, 80 tokens", "documents": "3 requests, 90 tokens"},
    "references": [{"name": "first come, first served", "counts": {"chat": COUNTED, "documents": COUNTED}}],
}


class CountingHouse(House):
    """A student's tree with a lab that has a board, beside one that has none."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        lab = folder / "labs" / "lab90_counted"
        for name, text in {
            "lab.toml": MANIFEST,
            "tests/test_counted.py": SUITE,
            "board.json": json.dumps(BOARD),
        }.items():
            (lab / name).parent.mkdir(parents=True, exist_ok=True)
            (lab / name).write_text(text, encoding="utf-8")
        (lab / "src").mkdir()
        self.lab = find_lab("90", folder)
        self.history = folder / ".lab" / "lab90-board.json"

    def board(self, *arguments: str):
        return self.command("board", "90", *arguments)

    def serves(self, **changed: int) -> None:
        """Write an answer that counts so on every trace."""
        self.write(f"def serve(trace):\n    return {COUNTED | changed}\n")


@pytest.fixture
def house(tmp_path):
    return CountingHouse(tmp_path)


def run(**changed) -> Run:
    told = {"day": "2026-01-02", "file": "f", "board": "b", "counts": {"chat": dict(COUNTED)}}
    return Run(**told | changed)


def test_three_runs_stand_on_the_board_and_in_the_history(house):
    for peak, in_time in ((8, 4), (7, 6), (8, 5)):
        house.serves(peak_blocks=peak, in_time=in_time)
        said = house.board()
        assert said.returncode == 0, said.stdout + said.stderr
    kept = kept_runs(house.lab)
    assert [each.counts["documents"]["in_time"] for each in kept] == [4, 6, 5]
    assert len({each.file for each in kept}) == 3
    assert {each.board for each in kept} == {board_digest(house.lab)}
    lines = said.stdout.splitlines()
    first = next(line for line in lines if line.startswith("first come, first served "))
    assert first.split()[-5:] == ["5", "2,250", "12", "0", "8"]
    assert [line.split()[-5] for line in lines if "your best (run 2, " in line] == ["6", "6"]
    assert [line.split()[-5] for line in lines if "your last (run 3, " in line] == ["5", "5"]
    changes = [line.split()[-5:] for line in lines if "against the run before" in line]
    assert changes == [["-1", "=", "=", "=", "+1"]] * 2
    assert "chat: 5 requests, 80 tokens" in lines


def test_what_broke_stands_without_counts(house):
    house.serves()
    house.board()
    house.serves(peak_blocks=9)
    said = house.board()
    assert said.returncode == 1
    last = [line for line in said.stdout.splitlines() if "your last (run 2, " in line]
    assert [line.split()[-5:] for line in last] == [["–"] * 5] * 2
    assert said.stdout.count("✗ block 5 belongs to request 2, which is still served") == 2
    assert "your best (run 1, " in said.stdout
    assert "against the run before" not in said.stdout
    kept = kept_runs(house.lab)[-1]
    assert kept.counts == {}
    assert kept.broke["chat"] == ["block 5 belongs to request 2, which is still served"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def serve(:\n", "counted.py has a syntax error in line 1"),
        ("import nowhere_at_all\n", "lab90 · serve · importing counted.py failed: ModuleNotFoundError"),
        ("def serve(trace):\n    raise NotImplementedError\n", "lab90 · serve · not implemented yet — start here"),
        ("", "counted.py defines no serve"),
    ],
    ids=["syntax", "import", "stub", "renamed"],
)
def test_a_file_with_nothing_to_count_is_told_as_by_lab_check(house, source, told):
    house.write(source)
    said = house.board()
    assert said.returncode == 1
    assert told in said.stdout, said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr
    assert not house.history.exists(), "that is no run"


def test_an_answer_that_ends_its_process_breaks_what_it_served(house):
    house.write(f"import os\ndef serve(trace):\n    return {COUNTED} if trace == 'chat' else os._exit(3)\n")
    said = house.board()
    assert said.returncode == 1
    assert "✗ its process ended: it left with status 3" in said.stdout
    assert list(kept_runs(house.lab)[0].counts) == ["chat"]


def test_a_lab_without_a_board_says_so_in_a_line(house):
    said = house.command("board", "01")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "lab board: lab01 has no board: its points are all that it counts\n"
    assert "Traceback" not in house.command("board", "77").stderr


def test_a_broken_board_is_one_line(house):
    (house.lab.folder / "board.json").write_text("[]", encoding="utf-8")
    said = house.board()
    assert said.stderr.startswith("lab board: lab90_counted/board.json is no board: ")
    assert len(said.stderr.splitlines()) == 1
    with pytest.raises(NoBoard):
        read_board(house.lab)


@pytest.mark.parametrize(
    "text", ["", "7", '{"runs": [7]}', '{"runs": [{"day": "\\u001b[2J", "file": "", "board": ""}]}', "\xff"]
)
def test_a_history_that_is_none_is_moved_aside(house, text):
    house.serves()
    house.history.parent.mkdir()
    house.history.write_text(text, encoding="latin-1")
    said = house.board()
    assert said.returncode == 0, said.stdout + said.stderr
    assert "begins anew" in said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert "\x1b" not in said.stdout + said.stderr
    assert len(kept_runs(house.lab)) == 1
    assert house.history.with_suffix(".unreadable.json").read_text(encoding="latin-1") == text


def test_where_nothing_can_be_kept_the_board_is_shown(house):
    (house.folder / ".lab").write_text("a file where the folder should be")
    house.serves()
    said = house.board()
    assert said.returncode == 0
    assert "your best (run 1, " in said.stdout
    assert said.stderr == "this run of lab90 could not be kept: File exists\n" or "cannot be read" in said.stderr


def test_a_forged_history_changes_no_points(house):
    """Points come from a run of the suite, and the board's own rows from this run: the history is a diary."""
    house.serves(in_time=7)
    house.command("check", "90")
    honest = house.kept()
    runs = [{"day": "2026-01-01", "file": "", "board": board_digest(house.lab)}]
    runs[0]["counts"] = {"chat": COUNTED | {"in_time": 10**9}}
    house.history.write_text(json.dumps({"runs": runs}), encoding="utf-8")
    house.board()
    assert house.kept() == honest, "a board runs a part of the suite: it stores no points"
    house.command("check", "90")
    assert house.kept() == honest == {"serve": (2, 3)}


def test_as_data(house):
    house.serves()
    house.board("--json")
    house.serves(in_time=6)
    said = house.board("--json")
    data = json.loads(said.stdout)
    assert (data["lab"], data["traces"], data["references"]) == ("lab90", BOARD["traces"], BOARD["references"])
    assert [each["counts"]["chat"]["in_time"] for each in data["runs"]] == [5, 6]
    assert data["best"] == {"chat": 2, "documents": 2}
    house.write("def serve(:\n")
    said = house.board("--json")
    assert (said.returncode, said.stdout) == (1, "")
    assert "syntax error" in said.stderr


@pytest.mark.parametrize("width", [24, 40, NARROW - 1, NARROW, 120])
def test_no_number_breaks_on_a_narrow_terminal(house, width):
    board, runs = read_board(house.lab), [run(), run(counts={"chat": COUNTED | {"bytes_read": 123456789}})]
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_rows(console, rows(house.lab, board, "chat", runs))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for whole in ("2,250", "30,864,197.2", "+30,861,947.2"):
        assert whole in text


def test_runs_are_compared_column_by_column():
    fewer_bytes = run(counts={"chat": COUNTED | {"bytes_read": 8000, "prefix_tokens": 0}})
    more_done = run(counts={"chat": COUNTED | {"in_time": 6, "bytes_read": 10**6}})
    broken, elsewhere = run(counts={}), run(board="other", counts=more_done.counts)
    assert best([run(), fewer_bytes, broken, elsewhere], "chat", "b") is fewer_bytes
    assert best([fewer_bytes, more_done], "chat", "b") is more_done
    assert best([broken], "chat", "b") is None
    first, again = run(), run()
    assert best([first, again], "chat", "b") is first
    assert best([run(counts={"chat": {"in_time": 5}}), first], "chat", "b") is first


def test_a_ratio_is_exact():
    by_name = {column.name: column for column in COLUMNS}
    assert by_name["bytes_read_a_token"].of(COUNTED) == Fraction(9000, 4)
    assert by_name["bytes_read_a_token"].of(COUNTED | {"tokens": 0}) is None
