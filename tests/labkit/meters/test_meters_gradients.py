"""The tensor meters count no array where autograd sums gradients in place."""

import pytest
import torch

from labkit.meters.profiler import profile_memory
from labkit.meters.tensors import AllocationMeter
from tests.labkit.meters.attentions import BATCH, TALL, D, N, counted, inputs


class TestGradientsThatMeet:
    """Autograd sums in place if it holds the last reference to the older gradient; a dispatch mode makes it copy."""

    @pytest.mark.parametrize("older", ["new", "view", "transposed"])
    @pytest.mark.parametrize("newer", ["new", "view", "transposed"])
    def test_at_a_fan_out(self, older, newer):
        make = {
            "new": torch.clone,
            "view": lambda g: g.clone().view(1, N, D)[0],
            "transposed": lambda g: g.t().clone().t(),
        }

        class Passing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, how):
                ctx.how = how
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return make[ctx.how](grad), None

        def step(x):
            (Passing.apply(x, newer) + Passing.apply(x, older)).sum().backward()

        def leaf():
            return torch.ones(N, D, requires_grad=True)

        meter = counted(step, leaf(), timeline=True)
        record = profile_memory(step, leaf())
        assert meter.peak_bytes == record.peak_bytes_outside({event.op for event in meter.events})

    @pytest.mark.parametrize("holder", ["nobody", "retain_grad", "create_graph"])
    def test_a_gradient_somebody_else_holds_is_not_written_over(self, holder):
        def step(x):
            y = x * 2
            if holder == "retain_grad":
                y.retain_grad()
            torch.autograd.grad((y.exp() * y).sum(), x, create_graph=holder == "create_graph")

        meter = counted(step, inputs()[0], timeline=True)
        record = profile_memory(step, inputs()[0])
        assert meter.peak_bytes == record.peak_bytes_outside({event.op for event in meter.events})

    @pytest.mark.parametrize("is_held", [False, True])
    def test_an_older_gradient_that_a_hook_keeps_is_not_written_over(self, is_held):
        def loss_and_kept():
            x = inputs()[0]
            z = x + x * 3
            kept = []
            z.register_hook(kept.append if is_held else lambda grad: None)
            return (z * torch.ones(BATCH, N, D)).sum(), kept

        loss, kept = loss_and_kept()
        meter = counted(loss.backward, timeline=True)
        got = meter.peak_bytes
        loss, kept = loss_and_kept()
        record = profile_memory(loss.backward)
        assert got == record.peak_bytes_outside({event.op for event in meter.events})
        assert got // (4 * TALL) == (3 if is_held else 2)
        assert len(kept) == is_held

    def test_an_addition_in_a_backward_of_ones_own_is_not_autograds(self):
        class Adding(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.stash = [x.exp()]
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return ctx.stash.pop() + grad * 2

        def step(x):
            Adding.apply(x * 2).sum().backward()

        meter = counted(step, inputs()[0], timeline=True)
        record = profile_memory(step, inputs()[0])
        assert meter.peak_bytes == record.peak_bytes_outside({event.op for event in meter.events})

    def test_the_event_of_a_sum_in_place_shows_one_array(self):
        with AllocationMeter(timeline=True) as meter:
            x = inputs()[0]
            (x * x).sum().backward()
            meter.blocks  # noqa: B018
        (event,) = [event for event in meter.events if event.op == "aten::add"]
        assert event.live_bytes == sum(block.nbytes for block in event.blocks)
        made_in_backward = [block.op for block in event.blocks if block.node == "MulBackward0"]
        assert sorted(made_in_backward) == ["aten::add", "aten::mul"]
