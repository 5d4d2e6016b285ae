"""Bytes that a forward pass keeps for its backward pass, compared with autograd's own hooks."""

import pytest
import torch

from labkit.bench.variants import written_out
from labkit.meters.tensors import AllocationMeter, kept_by_forward
from tests.labkit.meters.attentions import BATCH, SQUARE, VARIANTS, N, inputs


def saved_by_hooks(fn, *args):
    """Bytes that autograd's hooks see, each storage once, without those of `args` and the result."""
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in (*args, output)}
    return sum(storage.nbytes() for key, storage in saved.items() if key not in left_out)


class TestKeptByForward:
    def test_written_out_softmax(self):
        columns = BATCH * N
        assert kept_by_forward(written_out, *inputs()) == 2 * 4 * SQUARE + 8 * columns + 4 * columns

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    @pytest.mark.parametrize("attention", VARIANTS)
    def test_is_what_autograd_saves(self, attention, device):
        assert kept_by_forward(attention, *inputs(device)) == saved_by_hooks(attention, *inputs(device))

    def test_each_storage_once_inputs_and_output_left_out(self):
        x = torch.ones(100, requires_grad=True)
        assert kept_by_forward(lambda x: (x * x).view(10, 10).t() * x.view(10, 10), x) == 400
        assert kept_by_forward(torch.exp, x) == 0
        assert kept_by_forward(lambda pair: (pair[0].exp(), [pair[0] * 2]), [x, x]) == 0
        assert kept_by_forward(lambda x: x.exp()[:50].sin(), x) == 400

    def test_a_module_s_parameters_were_there_before(self):
        layer = torch.nn.Linear(12, 12)
        x = inputs()[0]
        assert kept_by_forward(layer, x) == kept_by_forward(layer.forward, x) == 0

    def test_what_a_context_hides_is_kept_though_not_saved(self):
        class Hiding(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.exponentials = x.exp()
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.exponentials

        x = torch.ones(100, requires_grad=True)
        assert saved_by_hooks(Hiding.apply, x) == 0
        assert kept_by_forward(Hiding.apply, x) == 400

    def test_the_output_is_released(self):
        with AllocationMeter() as meter:
            kept_by_forward(torch.exp, torch.ones(100, requires_grad=True))
        assert meter.live_bytes == 0
