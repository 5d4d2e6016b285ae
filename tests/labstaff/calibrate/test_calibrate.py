"""Calibration: nothing is run twice, and the worst of right answers and the nearest of mistakes are what is told."""

from __future__ import annotations

import json
import subprocess
import sys

from labkit.labs.catalog import ROOT, find_lab
from labstaff.calibrate.limits import Limit, found_in
from labstaff.calibrate.runs import MOST_SEEDS, Outcome, Record, right_jobs, without_imports

TEST = "TestMergeStates::test_precisions"


def outcome(answer, seed, *margins, right=True, state="s"):
    failed = [] if right else [TEST]
    return Outcome("lab03", answer, state, seed, "plain", right, failed, [(TEST, *margin) for margin in margins])


def test_a_record_goes_on_where_it_was(tmp_path):
    jobs = list(right_jobs(find_lab("03"), range(1, 2 * MOST_SEEDS + 1), "plain"))
    job = jobs[0]
    record = Record(tmp_path / "record")
    first = record.left([job])
    assert [part.seeds[0] for part in first] == [1, 1 + MOST_SEEDS]
    assert [part.whole for part in first] == [True, False]
    record.add(outcome("solution", seed, state=job.state) for seed in first[0].seeds)
    record.add([outcome("solution", 1 + MOST_SEEDS, state="another suite")])
    again = Record(tmp_path / "record")
    (left,) = again.left([job])
    assert left.seeds == tuple(range(1 + MOST_SEEDS, 2 * MOST_SEEDS + 1))
    assert not left.whole
    assert len(again.of([job])) == MOST_SEEDS


def test_a_room_that_moves_makes_no_other_suite_and_another_limit_does():
    suite = "from labkit.testing import compare\n\ndef test_it():\n    compare.assert_at_most('m', run(), 3)\n"
    moved = suite.replace("labkit.testing", "labkit.testing.attention").replace("\n\ndef", "\n\n# of m\ndef")
    assert without_imports(suite) == without_imports(moved)
    assert without_imports(suite) != without_imports(suite.replace("3", "4"))


def test_the_worst_of_right_answers_and_the_nearest_mistake():
    found = found_in(
        [
            outcome("solution", 1, ("l of 3", "tolerance", 0.5), ("o", "tolerance", 0.1)),
            outcome("solution", 2, ("l of 4", "tolerance", 0.8)),
            outcome("far", 1, ("l of 3", "tolerance", 50.0), ("o", "tolerance", 1.1), right=False),
            outcome("near", 1, ("l of 3", "tolerance", 1.2), right=False),
        ]
    )
    limit = Limit("lab03", TEST, "l of n", "tolerance")
    assert (found.shares[limit].right, found.shares[limit].by) == (0.8, "solution, seed 2, plain")
    assert (found.shares[limit].mistaken, found.shares[limit].mistake) == (1.2, "near, seed 1")
    assert found.shares[limit._replace(what="o")].mistaken is None, "the mistake is found by l"
    assert [len(found.too_tight()), len(found.too_wide()), found.n_right.total()] == [1, 1, 2]
    assert "merge_states,test_precisions,l of n,tolerance,0.800" in found.table()


def test_counts_that_were_asked_for_and_memories_to_fill_are_not_tight():
    shares = {"tolerance": 1.0, "tiles": 1.0, "bytes of SRAM": 0.99, "bytes": 0.99}
    found = found_in([outcome("solution", 1, *((kind, kind, share) for kind, share in shares.items()))])
    assert [line.split(": a right")[0].split()[-1] for line in found.too_tight()] == ["tolerance", "bytes"]
    assert found.exact() == 1


def test_a_mistake_that_nothing_finds_is_told():
    missed = outcome("near", 2, right=False)
    missed.failed.clear()
    found = found_in([outcome("near", 1, right=False), missed])
    assert (found.n_mistaken, found.let_pass) == (2, ["lab03, near, seed 2, plain"])


def test_a_run_at_many_seeds_draws_what_each_alone_would(tmp_path):
    def margins(seeds):
        file = tmp_path / seeds
        plugin = ["-p", "labstaff.calibrate.repeated", "--margins", str(file), "--seeds", seeds]
        suite = f"{find_lab('03').suite_file}::{TEST}"
        command = [sys.executable, "-m", "pytest", suite, "--solutions", "-q", *plugin]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300).returncode == 0
        return [json.loads(line) for line in file.read_text().splitlines()]

    both, alone = margins("5,6"), margins("6")
    assert [each["seed"] for each in both] == [5, 6]
    assert both[1] == alone[0] != {**both[0], "seed": 6}
