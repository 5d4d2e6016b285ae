"""A changed argument is what is reported of a comparison that fails, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.testing.compare import BorrowedWork, require
from labkit.testing.unchanged import report_mutation_first


def change_and_fail(error: Exception) -> None:
    given = {"Q": np.ones(3)}
    with report_mutation_first(given):
        given["Q"] *= 2
        raise error


def test_change_is_reported_instead_of_what_it_led_to():
    with pytest.raises(AssertionError, match="Q, an argument, was changed in place"):
        change_and_fail(AssertionError("wrong"))


def test_other_failures_pass_as_they_are():
    with pytest.raises(AssertionError, match="wrong"), report_mutation_first({"Q": np.ones(3)}):
        require(False, "wrong")


def test_right_result_of_a_changed_argument_passes():
    given = {"Q": np.ones(3)}
    with report_mutation_first(given):
        given["Q"] *= 2


def test_borrowed_work_comes_first():
    with pytest.raises(BorrowedWork):
        change_and_fail(BorrowedWork("torch's own"))
