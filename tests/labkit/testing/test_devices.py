"""The solutions compute where their arguments lie: on a GPU what they compute on the CPU, and on meta no other device.

A mask or positions made on the CPU meet tensors of a GPU only where there is one. On meta most of such meetings are
refused as well, so that they are found on a laptop.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from benchmarks.lab_calls import READS_NUMBERS, arguments, calls

N, D = 40, 16
CALLS = calls(N, D, block=16)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - READS_NUMBERS))
def test_on_meta(name: str) -> None:
    results = pytree.tree_leaves(CALLS[name](*arguments("meta", N, D)))
    assert results
    assert {x.device.type for x in results if isinstance(x, torch.Tensor)} == {"meta"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_on_a_gpu(name: str) -> None:
    want, got = (CALLS[name](*arguments(device, N, D)) for device in ("cpu", "cuda"))
    assert {x.device.type for x in pytree.tree_leaves(got) if isinstance(x, torch.Tensor)} == {"cuda"}
    torch.testing.assert_close(pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, got), want, rtol=1e-4, atol=1e-5)
