"""Every tensor meter sees all operators, in their smallest parts, however torch runs them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from labkit.meters.allocation import AllocationMeter
from labkit.meters.calls import OperatorsSeen, ResultsSeen, ScoreTiles
from labkit.meters.modes import OperatorMode
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter

N, D = 40, 8


def inputs() -> list[torch.Tensor]:
    q, k = torch.rand(N, D) + 1, -torch.rand(N, D) - 1
    return [q, k, torch.rand(N, D)]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.matmul(q, k.mT) * D**-0.5, -1) @ v


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


METERS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "flops": (lambda *_: ProductMeter(), lambda meter: meter.flops),
    "fused": (lambda *_: ProductMeter(), lambda meter: meter.fused),
    "tiles": (lambda *_: ScoreTiles(D), lambda meter: meter.tiles),
    "peak": (lambda *_: AllocationMeter(), lambda meter: meter.peak_bytes),
    "read": (lambda q, k, v: MovedBytes(q=q, k=k, v=v), lambda meter: (meter.read, meter.written)),
    "operators": (lambda *_: OperatorsSeen(), lambda meter: {"_softmax", "mm"} & {*meter.operators}),
    "results": (lambda *_: ResultsSeen((N, D)), lambda meter: bool(meter.results)),
}


@pytest.mark.parametrize("function", [attention, fused])
@pytest.mark.parametrize("what", METERS)
def test_inference_mode_hides_nothing(what: str, function: Callable[..., torch.Tensor]) -> None:
    make, read = METERS[what]
    counted = []
    for how in (torch.no_grad, torch.inference_mode):
        given = inputs()
        with make(*given) as meter, how():
            result = function(*given)
        counted.append(read(meter))
        torch.testing.assert_close(result, attention(*given))
    assert counted[1] == counted[0]
    assert function is fused or what == "fused" or counted[0], "nothing is counted at all"


def test_results_of_a_shape_are_kept_as_they_were() -> None:
    q, k, v = inputs()
    with ResultsSeen((N, D)) as seen:
        out = attention(q, k, v)
        out.zero_()
    torch.testing.assert_close(seen.results, [attention(q, k, v), torch.zeros(N, D)])


def distances(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    squares = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    return ((q**2).sum(-1)[:, None] + (k**2).sum(-1) - squares) / 2


def inverse(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    n, d, m = len(q), q.shape[1], len(k)
    whole = torch.eye(n + d + m)
    whole[:n, n : n + d], whole[n : n + d, n + d :] = -q, -k.mT
    return torch.linalg.inv(whole)[:n, n + d :]


def sum_of_an_embedding(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    places, starts = torch.arange(q.shape[1]).repeat(len(q)), torch.arange(len(q)) * q.shape[1]
    return F.embedding_bag(places, k.mT.contiguous(), starts, mode="sum", per_sample_weights=q.reshape(-1))


HIDDEN_PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "convolution": lambda q, k: F.conv1d(q[:, :, None], k[:, :, None])[:, :, 0],
    "distances": distances,
    "inverse": inverse,
    "sum_of_an_embedding": sum_of_an_embedding,
    "outer_products": lambda q, k: sum(torch.addr(torch.zeros(N, N), *each) for each in zip(q.T, k.T, strict=True)),
}


@pytest.mark.parametrize("way", HIDDEN_PRODUCTS)
def test_no_product_goes_unseen(way: str) -> None:
    q, k, _ = inputs()
    with ProductMeter() as meter:
        got = HIDDEN_PRODUCTS[way](q, k)
    torch.testing.assert_close(got, q @ k.mT, atol=1e-3, rtol=1e-3)
    assert meter.fused or meter.flops >= 2 * N * N * D


def test_a_tensor_class_without_a_dispatch_of_its_own_is_counted() -> None:
    class Named(torch.Tensor):
        pass

    with ProductMeter() as meter:
        given = [x.as_subclass(Named) for x in inputs()]
        attention(*given)
    assert meter.flops == 2 * 2 * N * N * D


def test_modes_inside_each_other_see_the_same_parts() -> None:
    class Seen(OperatorMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def _see(self, func: Any, args: Any, kwargs: Any) -> Any:
            self.names.append(func._schema.name)
            return super()._see(func, args, kwargs)

    with Seen() as outer, Seen() as inner, torch.inference_mode():
        attention(*inputs())
    assert outer.names == inner.names
    assert "aten::mm" in inner.names
    assert "aten::matmul" not in inner.names


def test_the_collector_waits_while_a_meter_is_active() -> None:
    with AllocationMeter():
        with ProductMeter():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the outer one is still active"
    assert gc.isenabled()
