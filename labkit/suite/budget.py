"""How long each test of a task may take: less, once others of the task have used up a lot for nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass

from labkit.suite.limits import WALL_SECONDS, TookTooLong

TEST_SECONDS = float(os.environ.get("ATTENTION_LABS_TEST_SECONDS", "60"))
"""CPU seconds that a test may take: more than five times what the slowest known right answer needs."""
AFTER_ONE_SECONDS = TEST_SECONDS * 22 / 60
"""The same once a test of the task took too long: still twice what the slowest known right answer needs."""
MANY_SECONDS = TEST_SECONDS * 100 / 60
AFTER_MANY_SECONDS = TEST_SECONDS * 4 / 60
"""The same once tests of the task have used up `MANY_SECONDS` for nothing."""
WALL_FACTOR = WALL_SECONDS / 60
LEAST_WALL_SECONDS = 10.0


@dataclass
class TaskBudget:
    """What the tests of one task may still take, in CPU seconds.

    Every test is run, whatever the others did: most need a fraction of a second. But a task whose code never ends
    must not cost each of its tests' whole time: after a first test that took too long the others get less.
    """

    lost_seconds: float = 0.0
    has_waited: bool = False
    """Whether one of them waited for what never came: the clock bounds others only then as closely."""

    def limits(self, wanted_seconds: float | None = None, lost_in_all: float = 0.0) -> tuple[float, float]:
        """CPU seconds and seconds by the clock for the next test, which wants `wanted_seconds` if it says so.

        `lost_in_all` is what tests of all tasks have used up for nothing: three tasks like that are enough.
        """
        cpu_seconds = wanted_seconds or TEST_SECONDS
        if self.lost_seconds >= MANY_SECONDS or lost_in_all >= 3 * MANY_SECONDS:
            cpu_seconds = min(cpu_seconds, AFTER_MANY_SECONDS)
        elif self.lost_seconds:
            cpu_seconds = min(cpu_seconds, AFTER_ONE_SECONDS)
        if self.has_waited:
            return cpu_seconds, cpu_seconds * WALL_FACTOR / 3
        return cpu_seconds, max(cpu_seconds * WALL_FACTOR, LEAST_WALL_SECONDS)

    def lost(self, error: TookTooLong, wanted_seconds: float | None = None) -> None:
        """Count a test that took too long, and have its message say so where it was given less than others."""
        if error.seconds < (wanted_seconds or TEST_SECONDS):
            error.why_less = " (other tests have used up a lot of time already, so this one got less)"
        self.lost_seconds += error.seconds
        self.has_waited = self.has_waited or error.waited
