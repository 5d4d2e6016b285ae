"""Tests written as lines of Python: what is read where, what is told, and what is named as the cause."""

import pytest
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.lines import left_on, read, run_lines
from labkit.testing.lines import Lines, random_lines


class MemoryTracker:
    """A tracker for these tests: the course's meter, asked as Lab 02 asks its own."""

    def __init__(self, too_much=0):
        self.too_much = too_much

    def __enter__(self):
        self.meter = AllocationMeter().__enter__()
        return self

    def __exit__(self, *error):
        self.meter.__exit__(*error)

    def reset(self):
        self.meter.reset()

    def current_allocated(self):
        return self.meter.live_bytes + self.too_much

    def peak_allocated(self):
        return self.meter.peak_bytes


def bytes_of(fn, *args):
    """A task for these tests: the bytes of a function's result."""
    return fn(*args).nbytes


LINES = Lines(lambda lines, **names: run_lines(lines, globals() | names))
KNOWN = [torch, left_on, read]


class TestFollow:
    def test_reads_after_lines_on_entering_and_after_the_block(self):
        noted = []
        lines = Lines(lambda source, **names: noted.append(source) or [(0, 0), (4, 4), (4, 8)])
        lines.assert_readings(
            "with MemoryTracker() as tracker:  # current 0, peak 0\n"
            "    x = torch.zeros(1)  # other: current 4\n"
            "# peak 8 — why"
        )
        assert noted[0].split("\n") == [
            "with MemoryTracker() as tracker:",
            "    note(read(tracker))",
            "    x = torch.zeros(1)",
            "    note(read(other))",
            "",
            "note(read(tracker))",
        ]

    def test_right_readings_pass(self):
        @LINES.follow
        def test(size):
            """
            with MemoryTracker() as tracker:
                x = torch.zeros(size)  # current {nbytes}
                del x  # current 0, peak {nbytes}
            """
            return {"size": size, "nbytes": 4 * size}

        test(10)

    def test_in_a_class_those_with_a_docstring_are_lines(self):
        @LINES.follow
        class Tests:
            def test_of_lines(self):
                """
                with MemoryTracker() as tracker:
                    x = torch.zeros(10)  # current 44
                """

            def test_of_its_own(self):
                return "as it is"

        assert Tests().test_of_its_own() == "as it is"
        with pytest.raises(AssertionError, match="is 40, expected 44"):
            Tests().test_of_lines()

    @pytest.mark.parametrize(
        ("lines", "told"),
        [
            ("    x = torch.zeros(10)  # current 44 — why", "after `x = torch.zeros(10)` is 40, expected 44"),
            ("    x = torch.zeros(10)  # current 44 — why", "Usual cause: why"),
            ("    x = torch.zeros(10)  # current 44\n    # 40: four are left out", "when four are left out"),
            ("    x = torch.zeros(10)  # peak 36", "peak_allocated"),
            ("# current 4", "after the block is 0"),
        ],
    )
    def test_wrong_readings_are_told(self, lines, told):
        with pytest.raises(AssertionError, match=told.replace("(", r"\(").replace(")", r"\)")):
            LINES.assert_readings("with MemoryTracker() as tracker:\n    pass\n" + lines)

    def test_random_lines_are_right_and_hard_to_get_right(self):
        import numpy as np

        for seed in range(5):
            lines = random_lines(np.random.default_rng(seed))
            assert lines.count("\n") == 80
            LINES.assert_readings(lines)
            with pytest.raises(AssertionError):
                LINES.assert_readings(lines.replace("MemoryTracker()", "MemoryTracker(too_much=4)"))


class TestGives:
    def test_is_given_what_a_line_uses(self):
        @LINES.gives("bytes_of")
        def test():
            """
            x, y = torch.zeros(3), torch.zeros(5)
            torch.cat([x, y])  # 32
            y + 1  # 20
            """

        test()

    def test_tells_the_line_and_the_cause(self):
        @LINES.gives("bytes_of")
        def test():
            """
            x = torch.zeros(3)
            x + 1  # 16
            # 12: one is forgotten
            """

        with pytest.raises(
            AssertionError, match=r"bytes_of gives for x \+ 1 is 12, expected 16(.|\n)*one is forgotten"
        ):
            test()


def test_what_is_left_on_is_told_and_taken_away():
    AllocationMeter().__enter__()
    torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
    assert left_on() == ["a tracker", "a hook on saved tensors"]
    assert left_on() == []


def test_what_stays_alive_after_a_statement():
    kept = []
    assert LINES.alive_after("kept.append(torch.zeros(10))", kept=kept) == 40
    assert LINES.alive_after("torch.zeros(10)") == 0
