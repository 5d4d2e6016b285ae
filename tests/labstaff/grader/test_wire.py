"""Values cross from the worker as they are, odd layouts included."""

from __future__ import annotations

import pytest
import torch

from labstaff.grader import wire


@pytest.mark.parametrize(
    "x",
    [torch.zeros(2, 0, 3), torch.empty_strided((0,), (0,)), torch.zeros(1).expand(3, 4)],
    ids=["empty", "empty with stride 0", "expanded"],
)
def test_a_tensor_of_any_strides_comes_back(x):
    head, buffers = wire.for_suite(wire.Returned(x))
    back = wire.from_worker(memoryview(bytes(head)), [memoryview(bytearray(buffer)) for buffer in buffers]).result
    assert torch.equal(back, x) and back.dtype == x.dtype
