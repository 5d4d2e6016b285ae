"""The process inside a sandbox that runs a review on versions, each in a confined process of its own."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import msgspec

from labkit.labs.catalog import find_lab
from labkit.review.file import ReviewProblem, read_review
from labkit.review.runs import Job, Runs
from labkit.review.versions import Version
from labstaff.grader.confine import LIMITS, MEMORY_BYTES, become, end_with_parent, filter_calls, limit


class ReviewJob(msgspec.Struct):
    """What is asked: the text of a review, on which versions, with random inputs from which seed."""

    lab: str
    text: str
    seed: int
    versions: list[Version]


class Outcome(msgspec.Struct):
    """What is reported: by task and version the test that fails, "" for none; or why no test could run."""

    failed: dict[str, dict[str, str]] = {}
    problem: str = ""


def main(scratch: str, user: str) -> None:
    """Read a job from standard input, and write its outcome to standard output."""
    become(user, scratch)
    end_with_parent()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ReviewJob)
    os.chdir(scratch)
    file = Path(scratch, "review.py")
    file.write_text(job.text, encoding="utf-8")
    sys.stdout.buffer.write(msgspec.json.encode(outcome_of(job, file)))


def outcome_of(job: ReviewJob, file: Path) -> Outcome:
    """Run the right versions of each task that has tests, and where all are accepted the wrong ones."""
    lab = find_lab(job.lab)
    try:
        review = read_review(lab, file)
    except ReviewProblem as error:
        return Outcome(problem=str(error))
    runs = Runs(lab, review, job.seed, prepare=confine_run)
    failed: dict[str, dict[str, str]] = {task: {} for task in review.begun}
    for is_right in (True, False):
        jobs = [Job(task, each) for task in failed for each in job.versions if task in each.tasks]
        chosen = [each for each in jobs if each.version.is_right is is_right and not any(failed[each.task].values())]
        for each, verdict in runs.verdicts(chosen):
            failed[each.task][each.version.name] = verdict.failed
    return Outcome(failed)


def confine_run() -> None:
    """Bound the process of one run: memory, files, no further process, no signal to another one."""
    limit(LIMITS | {resource.RLIMIT_DATA: MEMORY_BYTES})
    filter_calls()
