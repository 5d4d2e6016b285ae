"""Lab 00: tests of its results."""

from new_lab import first_task

from labkit.testing.compare import assert_close


class TestFirstTask:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", first_task(x), x + 1, baseline=x + 1, mistakes={"nothing is added": x})
