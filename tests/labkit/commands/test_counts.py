"""A lab's board of counts: a student's runs beside the course's, kept; nothing of it decides a point."""

from __future__ import annotations

import io
import json
import re
from fractions import Fraction

import pytest
from rich.console import Console

from labkit.commands import counts as command
from labkit.commands.counts import NARROW, print_rows, rows, show_counts
from labkit.suite.counts import COLUMNS, NoBoard, Run, best, board_digest, kept_runs, read_board
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import State, Verdict
from tests.labkit.commands.counting import BOARD, BROKE, COUNTED, answer, counting_lab
from tests.student import House

NOT_STARTED = Verdict(
    "test_board[chat]", "serve", State.NOT_STARTED, ("counted.py:2 still raises NotImplementedError",)
)


@pytest.fixture
def lab(tmp_path):
    """The lab in a student's tree, with an answer that may be anything: see `serve`."""
    return counting_lab(tmp_path)


@pytest.fixture
def serve(lab, monkeypatch, capsys):
    """Runs `lab board` on an answer that counts so, or breaks what it breaks; returns status, output and errors."""
    monkeypatch.delenv("COLUMNS", raising=False)  # as wide as where nobody says how wide

    def run_once(*arguments, verdicts=None, said="", **changed):
        lab.answer_file.write_text(answer(**changed), encoding="utf-8")
        counted = COUNTED | changed
        state, lines, numbers = (State.WRONG, (said,), {}) if said else (State.PASSED, (), counted)
        told = verdicts or [Verdict(f"test_board[{t}]", "serve", state, lines, counts=numbers) for t in BOARD["traces"]]
        monkeypatch.setattr(command, "run_apart", lambda *_, **__: SuiteRun(told, len(told)))
        status = show_counts(lab, as_json="--json" in arguments)
        return status, *capsys.readouterr()

    return run_once


@pytest.fixture
def history(lab):
    """Where the runs are kept."""
    return lab.folder.parent.parent / ".lab" / "lab90-board.json"


def last_numbers(output, beginning):
    """The numbers of the row whose name begins so, table by table."""
    return [line.split()[-len(COLUMNS) :] for line in output.splitlines() if line.startswith(beginning)]


def test_three_runs_stand_on_the_board_and_in_the_history(lab, serve):
    for peak, in_time in ((8, 4), (7, 6), (8, 5)):
        status, output, errors = serve(peak_blocks=peak, in_time=in_time)
        assert (status, errors) == (0, "")
    kept = kept_runs(lab)
    assert [each.counts["documents"]["in_time"] for each in kept] == [4, 6, 5]
    assert len({each.file for each in kept}) == 3
    assert {each.board for each in kept} == {board_digest(lab)}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", each.day) for each in kept)
    assert last_numbers(output, "first come, first served ") == [["5", "2,250", "12", "0", "8", "10,240"]] * 2
    assert last_numbers(output, "your best, run 2 ") == [["6", "2,250", "12", "0", "7", "10,240"]] * 2
    assert last_numbers(output, "your last, run 3 ") == [["5", "2,250", "12", "0", "8", "10,240"]] * 2
    assert last_numbers(output, "against the run before ") == [["-1", "=", "=", "=", "+1", "="]] * 2
    assert "chat: 5 requests, 80 tokens" in output.splitlines()
    assert "Your file is the one of the run before." not in output
    assert "Your file is the one of the run before." in serve(peak_blocks=8, in_time=5)[1]


def test_what_broke_stands_without_counts(lab, serve):
    serve()
    status, output, _ = serve(said=BROKE)
    assert status == 1
    assert last_numbers(output, "your last, run 2 ") == [["–"] * 6] * 2
    assert output.count(f"  ✗ {BROKE}") == 2
    assert "your best, run 1 " in output
    assert "against the run before" not in output
    kept = kept_runs(lab)[-1]
    assert (kept.counts, kept.broke) == ({}, {"chat": [BROKE], "documents": [BROKE]})
    assert "against the run before" not in serve()[1], "there is nothing to be compared with"


def test_a_run_on_another_board_is_kept_and_not_compared(lab, serve):
    serve(in_time=6)
    (lab.folder / "board.json").write_text(json.dumps(BOARD | {"references": []}), encoding="utf-8")
    _, output, _ = serve(in_time=5)
    assert "The course has changed since the run before" in output
    assert "your best, run 2 " in output
    assert "against the run before  " not in output
    assert len(kept_runs(lab)) == 2


def test_what_is_not_written_is_told_and_not_kept(lab, serve, history):
    status, output, _ = serve(verdicts=[NOT_STARTED])
    assert status == 1
    assert "lab90 · serve · not implemented yet — start here\nnext: uv run lab check 90\n" in output
    assert last_numbers(output, "first come, first served ")
    assert "your last" not in output
    assert not history.exists()


def test_the_whole_way_from_files_to_the_board(tmp_path):
    """In a tree of its own: the suite in a process, another when an answer has ended it, and what can't be counted."""
    house = House(tmp_path)
    lab = counting_lab(tmp_path)
    lab.answer_file.write_text(
        f"import os\ndef serve(trace):\n    return {COUNTED} if trace == 'chat' else os._exit(3)\n", encoding="utf-8"
    )
    said = house.command("board", "90")
    assert said.returncode == 1, said.stderr
    assert said.stdout.count("✗ its process ended: it left with status 3") == 1
    (kept,) = kept_runs(lab)
    assert kept.counts == {"chat": COUNTED}
    lab.answer_file.write_text(answer(peak_blocks=9), encoding="utf-8")
    assert house.command("board", "90").stdout.count(f"  ✗ {BROKE}") == 2
    _, broken = kept_runs(lab)
    assert (broken.counts, broken.broke["chat"][0]) == ({}, BROKE), "what a test records before it fails is no count"
    lab.answer_file.write_text("def serve(:\n", encoding="utf-8")
    said = house.command("board", "90")
    assert (said.returncode, said.stderr) == (1, "")
    assert "lab90 · counted.py has a syntax error in line 1" in said.stdout
    assert kept_runs(lab) == [kept, broken]
    said = house.command("board", "01")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "lab board: lab01 has no board: its points are all that it counts\n"
    assert len(house.command("board", "77").stderr.splitlines()) == 1


def test_points_stand_apart_from_the_board(tmp_path):
    """A board's run stores no points, and a forged history gives none."""
    house = House(tmp_path)
    house.lab = lab = counting_lab(tmp_path)
    lab.answer_file.write_text(answer(in_time=7), encoding="utf-8")
    house.command("check", "90")
    assert house.kept() == {"serve": (2, 3)}
    forged = Run("2026-01-01", "", board_digest(lab), counts={"chat": COUNTED | {"in_time": 10**9}})
    command.counts.keep_runs(lab, [forged])
    assert "your best, run 1 " in house.command("board", "90").stdout
    assert house.kept() == {"serve": (2, 3)}
    house.command("check", "90")
    assert house.kept() == {"serve": (2, 3)}
    assert [each.counts["chat"]["in_time"] for each in kept_runs(lab)] == [10**9, 7]


@pytest.mark.parametrize("text", ["[]", "", '{"traces": {}}', '{"traces": {}, "references": [], "more": 1}'])
def test_a_broken_board_is_one_line(lab, text):
    (lab.folder / "board.json").write_text(text, encoding="utf-8")
    with pytest.raises(NoBoard, match=r"^lab90_counted/board\.json is no board: [^\n]+$"):
        read_board(lab)


@pytest.mark.parametrize(
    "text", ["", "7", '{"runs": [7]}', '{"runs": [{"day": "\\u001b[2J", "file": "", "board": ""}]}', "\xff"]
)
def test_a_history_that_is_none_is_moved_aside(lab, serve, history, text):
    history.parent.mkdir()
    history.write_text(text, encoding="latin-1")
    status, output, errors = serve()
    assert status == 0
    assert "the history of lab90 begins anew" in errors
    assert "\x1b" not in output + errors
    assert len(kept_runs(lab)) == 1
    assert history.with_suffix(".unreadable.json").read_text(encoding="latin-1") == text


def test_where_nothing_can_be_kept_the_board_is_shown(lab, serve, history):
    history.parent.write_text("a file where the folder should be")
    status, output, errors = serve()
    assert status == 0
    assert "your best, run 1 " in output
    assert errors == "the history of lab90 cannot be read: Not a directory\n"


def test_a_history_that_cannot_be_read_is_not_written_over(lab, serve, history):
    history.mkdir(parents=True)
    _, output, errors = serve()
    assert "your best, run 1 " in output
    assert errors == "the history of lab90 cannot be read: Is a directory\n"
    assert history.is_dir()


def test_as_data(lab, serve):
    serve("--json")
    status, output, _ = serve("--json", in_time=6)
    data = json.loads(output)
    assert status == 0
    assert (data["lab"], data["traces"], data["references"]) == ("lab90", BOARD["traces"], BOARD["references"])
    assert [each["counts"]["chat"]["in_time"] for each in data["runs"]] == [5, 6]
    assert data["best"] == {"chat": 2, "documents": 2}
    _, output, errors = serve("--json", verdicts=[NOT_STARTED])
    assert len(json.loads(output)["runs"]) == 2
    assert "not implemented yet" in errors
    lab.answer_file.write_text("def serve(:\n", encoding="utf-8")
    assert show_counts(lab, as_json=True) == 1


def run(**changed) -> Run:
    told = {"day": "2026-01-02", "file": "f", "board": "b", "counts": {"chat": dict(COUNTED)}}
    return Run(**told | changed)


@pytest.mark.parametrize("width", [24, 40, NARROW - 1, NARROW, 120])
def test_no_number_breaks_on_a_narrow_terminal(lab, width):
    digest = board_digest(lab)
    runs = [run(board=digest), run(board=digest, counts={"chat": COUNTED | {"bytes_read": 123456789, "tokens": 10}})]
    console = Console(width=width, file=io.StringIO(), soft_wrap=True)
    print_rows(console, rows(lab, read_board(lab), "chat", runs))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= max(width, 46), "a row's name or a number; a terminal breaks those"
    for whole in ("2,250", "12,345,678.9", "+12,343,428.9"):
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
