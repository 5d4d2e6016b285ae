"""Lab 13 with the course's plain parts instead of earlier labs': the points lost equal the handout's."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.results import How, add_up
from tests.suite_runs import Job, session_folder

LAB = find_lab("13")
SWITCHES = {
    "`BLOCKS = PlainBlocks`": {"BlockManager": ("BLOCKS = BlockManager", "BLOCKS = PlainBlocks")},
    "`CACHE = PlainBlocksCache`": {"QuantizedBlocks": ("CACHE = QuantizedBlocks", "CACHE = PlainBlocksCache")},
}
SWITCHES["both"] = {task: lines for switch in SWITCHES.values() for task, lines in switch.items()}
"""How the handout calls a switch → the tasks whose pieces come from the course, and the line of each, before, after."""


def job_of(switch: str) -> Job:
    """The suite on the solution, with the switch set."""
    text = solution_file(LAB).read_text(encoding="utf-8")
    for before, after in SWITCHES[switch].values():
        assert text.count(before) == 1
        text = text.replace(before, after)
    folder = session_folder("switched")
    (folder / LAB.student_file.name).write_text(text, encoding="utf-8")
    return Job(LAB.label, ("--src", str(folder)))


JOBS = {switch: job_of(switch) for switch in SWITCHES}


@pytest.mark.slow
@pytest.mark.parametrize(("switch", "job"), JOBS.items(), ids=["blocks", "cache", "both"])
def test_points_with_the_courses_pieces_are_those_in_the_handout(switch, job, suite_runs):
    run = suite_runs(job)
    assert run.ended.how is How.FINISHED, run.ended
    results = add_up(LAB, run.results)
    points = {task.name: 0 if task.name in SWITCHES[switch] else results[task.name].points(task) for task in LAB.tasks}
    whole = {task.name: task.points for task in LAB.tasks}
    assert points["cache_plan"] + points["Scheduler"] == whole["cache_plan"] + whole["Scheduler"]
    own = sum(whole[name] for name in SWITCHES[switch])
    row = f"| {switch} | {own:g} | {whole['Server'] - points['Server']:.3g} | {sum(points.values()):.3g} |"
    handout = (LAB.folder / "README.md").read_text(encoding="utf-8")
    assert row in handout, f"the table of what a piece of the course's costs lacks the row {row}"
