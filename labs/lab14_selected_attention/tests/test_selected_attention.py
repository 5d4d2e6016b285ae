"""Lab 14: tests of its results."""

from selected_attention import first_task

from labkit.testing.compare import assert_close


class TestFirstTask:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", first_task(x), x + 1, plain=x + 1, mistakes={"nothing is added": x})
