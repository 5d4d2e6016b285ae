"""The contract of attention for functions of NumPy arrays: how their cases are drawn and handed over."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.testing.attention.cases import Case, worked_example
from labkit.testing.contracts.attention import Contract


class OfArrays(Contract):
    """Cases of Q, K, V and, where a case has one, a mask."""

    def case(self, rng: np.random.Generator, **sizes: Any) -> Case:
        """Standard-normal inputs of these sizes."""
        return Case.drawn(rng, **sizes)

    def worked_case(self) -> Case:
        """The inputs that handouts work by hand."""
        return Case(*worked_example())

    def arguments(self, case: Case) -> dict[str, Any]:
        """The arrays of a case, by the names of the handout."""
        mask = {} if case.mask is None else {"mask": case.mask}
        return {**dict(zip("QKV", case.inputs, strict=True)), **mask}
