"""What a report's check cells call: the suite's word on one task, in a process apart from the notebook."""

from __future__ import annotations

from labkit.catalog import find_lab
from labkit.render import run_lines
from labkit.warm import WarmRunner


def check(lab: str, task: str) -> None:
    """Run the tests of one task of `lab` on the student's file and print what they say."""
    found = find_lab(lab)
    test_class = next(t.tests for t in found.tasks if t.name == task)
    with WarmRunner() as runner:
        run = runner.run(found.label, tests=(test_class,))
    print(run.problem or "\n".join(run_lines(found, run.verdicts)))
