"""The contract of attention for functions of NumPy arrays: how their cases are drawn and handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


class Masks(OfArrays):
    """Masks of every shape that broadcasts over the scores."""

    @pytest.mark.parametrize("shape", [(12,), (9, 1), (3, 1, 12), (3, 9, 12)], ids=str)
    def test_mask_broadcasts(self, rng, shape):
        case = self.case(rng, n_queries=9, n_keys=12, d=8, batch=(3,))
        case.mask = rng.random(shape) < 0.4
        self.check(case, hint=f"the mask has shape {shape} and broadcasts over (..., N_q, N_k)")
