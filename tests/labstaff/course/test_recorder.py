"""Recording beside judging: each student once, as soon as enough are judged, and nothing after something went wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from labkit.labs.catalog import find_lab
from labstaff.course import recorder as recording
from labstaff.course.record import Recorded
from labstaff.course.recorder import LEAST_AT_ONCE, Recorder
from labstaff.grader.results import JudgedSubmission
from labstaff.grading.many import HandedIn, Outcome

LAB, OTHER = find_lab("01"), find_lab("03")
LONGEST_SECONDS = 60


class Nbgrader:
    """Only ever closed."""

    def __init__(self):
        self.n_closed = 0

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.n_closed += 1


@pytest.fixture
def nbgrader():
    return Nbgrader()


@pytest.fixture
def batches(monkeypatch):
    """Of each command of nbgrader's the lab and the students; `begun` is told of each."""
    found = []
    found_one = threading.Semaphore(0)

    def record(course, lab, nbgrader, students, *, force, say):
        found.append((lab.label, sorted(students)))
        found_one.release()
        return Recorded(anew=sorted(students))

    monkeypatch.setattr(recording, "record", record)
    return found, found_one


def outcomes(lab, folder, n, **more):
    judged = JudgedSubmission(lab.folder.name, "key", "judged")
    return [Outcome(HandedIn(f"s{i:02d}", lab, folder), judged, **more) for i in range(n)]


def test_a_batch_is_recorded_before_the_last_is_judged(tmp_path, nbgrader, batches):
    found, found_one = batches
    of_lab, of_other = outcomes(LAB, tmp_path, LEAST_AT_ONCE + 2), outcomes(OTHER, tmp_path, 3)
    first, late = of_lab[:LEAST_AT_ONCE], of_lab[LEAST_AT_ONCE:]
    with Recorder(tmp_path, lambda: nbgrader) as recorder:
        for outcome in (*of_other, *first):
            recorder.judged(outcome)
        assert found_one.acquire(timeout=LONGEST_SECONDS)
        assert found == [("lab01", [each.handed_in.student for each in first])]
        for outcome in late:
            recorder.judged(outcome)
        done = recorder.finish([*of_lab, *of_other])
    assert sorted(found[1:]) == [
        ("lab01", [each.handed_in.student for each in late]),
        ("lab03", ["s00", "s01", "s02"]),
    ]
    assert {lab.label: sorted(each.anew) for lab, each in done.items()} == {
        "lab01": [each.handed_in.student for each in of_lab],
        "lab03": ["s00", "s01", "s02"],
    }
    assert nbgrader.n_closed == 1


def test_what_was_judged_before_waits_for_the_end_and_what_cannot_be_recorded_is_left_out(tmp_path, nbgrader, batches):
    found, _ = batches
    archive = outcomes(LAB, tmp_path / "s77.zip", 1)
    failed = [Outcome(HandedIn("s88", LAB, tmp_path), None, problem="it failed")]
    everything = [*outcomes(LAB, tmp_path, LEAST_AT_ONCE, was_kept=True), *archive, *failed]
    with Recorder(tmp_path, lambda: nbgrader) as recorder:
        for outcome in everything:
            recorder.judged(outcome)
        assert found == []
        recorder.finish(everything)
    assert found == [("lab01", [f"s{i:02d}" for i in range(LEAST_AT_ONCE)])]


def test_what_goes_wrong_meanwhile_is_raised_at_the_end(tmp_path, nbgrader, monkeypatch):
    def record(*_args, **_more):
        raise OSError("no room")

    monkeypatch.setattr(recording, "record", record)
    everything = outcomes(LAB, tmp_path, LEAST_AT_ONCE)
    with Recorder(tmp_path, lambda: nbgrader) as recorder:
        for outcome in everything:
            recorder.judged(outcome)
        with pytest.raises(OSError, match="no room"):
            recorder.finish(everything)


def test_a_body_that_is_interrupted_ends_nbgrader_first(tmp_path, nbgrader, monkeypatch):
    begun = threading.Event()

    def record(*_args, **_more):
        begun.set()
        while not nbgrader.n_closed:
            pass
        raise EOFError

    monkeypatch.setattr(recording, "record", record)

    def interrupted():
        with Recorder(tmp_path, lambda: nbgrader) as recorder:
            for outcome in outcomes(LAB, tmp_path, LEAST_AT_ONCE):
                recorder.judged(outcome)
            assert begun.wait(LONGEST_SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert nbgrader.n_closed == 1


def test_without_an_outcome_nothing_is_started(tmp_path):
    with Recorder(Path(tmp_path), lambda: pytest.fail("nbgrader is started")) as recorder:
        assert recorder.finish([]) == {}
