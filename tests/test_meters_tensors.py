"""The torch meters against the CPU allocator's own record, and against what they must refuse."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from labkit.bench.variants import built_in_softmax, sdpa, written_out
from labkit.meters.profiler import profile_memory
from labkit.meters.tensors import (
    AllocationMeter,
    CudaMeter,
    SimulatedOutOfMemoryError,
    kept_by_forward,
    measure_peak,
    meter_for,
)

BATCH, N, D = 2, 37, 12
SQUARE = BATCH * N * N
TALL = BATCH * N * D


def scores_of(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def sdpa_plain(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v)


def sdpa_causal_heads(q, k, v):
    return functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]


def masked(q, k, v):
    mask = torch.zeros(N, N, dtype=torch.bool, device=q.device)
    mask[:, ::3] = True
    return scores_of(q, k).masked_fill(mask, -1e9).softmax(-1) @ v


def causal(q, k, v):
    return (scores_of(q, k) + torch.full((N, N), -1e9, dtype=q.dtype, device=q.device).triu(1)).softmax(-1) @ v


def scaled_first(q, k, v):
    return ((q / math.sqrt(D)) @ k.transpose(-2, -1)).softmax(-1) @ v


def einsum(q, k, v):
    weights = torch.einsum("bid,bjd->bij", q, k).mul(0.3).softmax(-1)
    return torch.einsum("bij,bjd->bid", weights, v)


def baddbmm(q, k, v):
    bias = torch.empty(BATCH, N, N, dtype=q.dtype, device=q.device)
    return torch.baddbmm(bias, q, k.transpose(-2, -1), beta=0.0, alpha=0.3).softmax(-1) @ v


def chunked_queries(q, k, v):
    return torch.cat([built_in_softmax(part, k, v) for part in q.split(10, dim=-2)], dim=-2)


def tiled_online(q, k, v):
    out, total, highest = torch.zeros_like(q), torch.zeros_like(q[..., :1]), torch.full_like(q[..., :1], -1e9)
    for k_block, v_block in zip(k.split(16, dim=-2), v.split(16, dim=-2), strict=True):
        scores = scores_of(q, k_block)
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        scale, weights = (highest - new).exp(), (scores - new).exp()
        out, total, highest = out * scale + weights @ v_block, total * scale + weights.sum(-1, keepdim=True), new
    return out / total


def in_place(q, k, v):
    scores = q @ k.transpose(-2, -1)
    scores.mul_(0.3)
    scores.sub_(scores.detach().amax(-1, keepdim=True))
    scores.exp_()
    return (scores @ v) / scores.sum(-1, keepdim=True)


def checkpointed(q, k, v):
    if not torch.is_grad_enabled():
        return written_out(q, k, v)
    return checkpoint(written_out, q, k, v, use_reentrant=False, preserve_rng_state=False)


def log_sum_exp(q, k, v):
    scores = scores_of(q, k)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def dropped_out(q, k, v):
    return functional.dropout(scores_of(q, k).softmax(-1), 0.2) @ v


def two_heads(q, k, v):
    def split(x):
        return x.view(BATCH, N, 2, D // 2).transpose(1, 2)

    return built_in_softmax(split(q), split(k), split(v)).transpose(1, 2).reshape(BATCH, N, D)


def self_attention(q, k, v):
    x = q + k * v
    return written_out(x, x, x)


def linear(q, k, v):
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    return (q @ (k.transpose(-2, -1) @ v)) / ((q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True) + 1e-6)


def linear_causal(q, k, v):
    state = torch.einsum("bnd,bnv->bndv", k, v).cumsum(1)
    return torch.einsum("bnd,bndv->bnv", q, state)


class Recomputing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return built_in_softmax(q, k, v)

    @staticmethod
    def backward(ctx, d_out):
        q, k, v = ctx.saved_tensors
        weights = scores_of(q, k).softmax(-1)
        d_weights = d_out @ v.transpose(-2, -1)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True)) / math.sqrt(D)
        return d_scores @ k, d_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ d_out


def recomputing(q, k, v):
    return Recomputing.apply(q, k, v)


VARIANTS = [
    written_out,
    built_in_softmax,
    sdpa,
    sdpa_plain,
    sdpa_causal_heads,
    masked,
    causal,
    scaled_first,
    einsum,
    baddbmm,
    chunked_queries,
    tiled_online,
    in_place,
    checkpointed,
    log_sum_exp,
    dropped_out,
    two_heads,
    self_attention,
    linear,
    linear_causal,
    recomputing,
]


def inputs(device="cpu", dtype=torch.float32, shape=(BATCH, N, D), requires_grad=True):
    torch.manual_seed(0)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]


def forward_only(attention: Callable, q, k, v):
    with torch.no_grad():
        return attention(q, k, v)


def two_steps(attention: Callable, q, k, v):
    for _ in range(2):
        (attention(q, k, v) * 0.5).sum().backward()


def counted(run: Callable, *args, **options) -> AllocationMeter:
    with AllocationMeter(**options) as meter:
        run(*args)
    return meter


class TestAgainstTheProfiler:
    """Equality to the byte, once what no dispatch mode can see is taken out of the allocator's record."""

    @pytest.mark.parametrize("run", [forward_only, two_steps])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("attention", VARIANTS)
    def test_peak_and_what_is_kept(self, attention, dtype, run):
        tensors = inputs(dtype=dtype)
        with AllocationMeter(timeline=True) as meter:
            result = run(attention, *tensors)
        got = meter.peak_bytes, meter.live_bytes
        record = profile_memory(run, attention, *inputs(dtype=dtype))
        assert got == (record.peak_bytes_outside({event.op for event in meter.events}), record.kept_bytes)
        assert (result is None) == (run is two_steps)

    @pytest.mark.parametrize("run", [forward_only, two_steps])
    @pytest.mark.parametrize("attention", [v for v in VARIANTS if v not in (sdpa, sdpa_causal_heads)])
    def test_simulated_tensors_count_like_real_ones(self, attention, run):
        real, simulated = (counted(run, attention, *inputs(device)) for device in ("cpu", "meta"))
        assert (simulated.peak_bytes, simulated.largest_bytes) == (real.peak_bytes, real.largest_bytes)

    @pytest.mark.parametrize(
        "fn",
        [
            lambda x: (x - x.max(-1, keepdim=True)[0]).exp(),
            lambda x: (x - x.amax(-1, keepdim=True)).exp(),
            lambda x: x.sort(-1)[0].sin(),
            lambda x: x.topk(5)[0].sin(),
            lambda x: x.gather(-1, torch.zeros(BATCH, N, D, dtype=torch.long)).sin(),
            lambda x: x[:, torch.arange(20)].sin(),
            lambda x: x.index_select(1, torch.arange(20)).sin(),
            lambda x: torch.where(torch.ones(N, D) > 0, x, x.exp()).sin(),
            lambda x: torch.cat([part.sin() for part in x.split(7, dim=1)], dim=1).exp(),
            lambda x: functional.layer_norm(x, (D,)).sin(),
        ],
        ids=["max", "amax", "sort", "topk", "gather", "index", "index_select", "where", "split", "layer_norm"],
    )
    def test_backward_of_operators_around_attention(self, fn):
        def step(x):
            fn(x * torch.ones(N, D)).sum().backward()

        meter = counted(step, inputs()[0], timeline=True)
        record = profile_memory(step, inputs()[0])
        assert meter.peak_bytes == record.peak_bytes_outside({event.op for event in meter.events})

    def test_nothing_has_to_be_taken_out_without_kernels_that_use_scratch(self):
        def step(x):
            shifted = x - x.max(-1, keepdim=True)[0]
            (shifted.exp() / shifted.exp().sum(-1, keepdim=True)).sin().sum().backward()

        (x,) = inputs()[:1]
        assert counted(step, x).peak_bytes == profile_memory(step, inputs()[0]).peak_bytes

    def test_scratch_is_what_one_operator_takes_and_gives_back(self):
        x = torch.ones(N, N).expand(BATCH, N, N)  # the product copies what has a stride of 0
        record = profile_memory(torch.bmm, x, torch.ones(BATCH, N, N))
        assert record.peak_bytes - record.peak_bytes_outside({"aten::bmm"}) == record.peak_bytes - 4 * SQUARE
        assert record.peak_bytes_outside(set()) == record.peak_bytes

    def test_flash_attention_on_the_cpu_uses_scratch_that_no_mode_sees(self):
        q, k, v = inputs(requires_grad=False)
        assert measure_peak(sdpa_causal_heads, q, k, v)[0] < profile_memory(sdpa_causal_heads, q, k, v).peak_bytes


class TestGradientsThatMeet:
    """Autograd sums them in place if it is the last to hold the older one; a dispatch mode makes it copy."""

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


class TestCounting:
    def test_inputs_and_views_cost_nothing(self):
        x = torch.ones(100, 4)
        with AllocationMeter() as meter:
            views = x[3:], x.t(), x.view(-1), x.expand(5, 100, 4), x.add_(1), x.detach()
        assert (meter.live_bytes, meter.peak_bytes, meter.largest_bytes) == (0, 0, 0)
        assert len(views) == 6

    def test_a_storage_counts_once_and_until_its_last_view_goes(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
            tail = x[90:]
            assert meter.live_bytes == 400
            del x
            assert meter.live_bytes == 400
            del tail
            assert meter.live_bytes == 0
        assert meter.peak_bytes == 400

    def test_what_autograd_holds_is_alive(self):
        x = torch.ones(100, requires_grad=True)
        with AllocationMeter() as meter:
            loss = x.exp().sum()
            assert meter.live_bytes == 404
            loss.backward()
            assert meter.live_bytes == 404  # the saved exponentials went, x.grad came
        assert x.grad is not None
        x.grad = None
        assert meter.live_bytes == 4

    def test_releases_count_after_leaving_and_new_storages_do_not(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
        y = torch.ones(100)
        assert meter.live_bytes == 400
        del x, y
        assert meter.live_bytes == 0

    def test_constructors(self):
        with AllocationMeter() as meter:
            made = [torch.tensor([1.0] * 25), torch.arange(10), torch.Tensor(5, 5), torch.full((3,), 2.0)]
            assert meter.live_bytes == 100 + 80 + 100 + 12
            borrowed = torch.from_numpy(np.ones(50))
            assert meter.live_bytes == 292
        assert len(made) == 4
        assert len(borrowed) == 50

    def test_out_argument_and_resizing_by_hand(self):
        with AllocationMeter() as meter:
            x = torch.empty(0)
            torch.add(torch.ones(100), 1, out=x)
            assert (meter.live_bytes, meter.peak_bytes) == (400, 800)
            x.untyped_storage().resize_(0)
            assert (meter.live_bytes, meter.peak_bytes) == (0, 800)

    def test_each_storage_is_rounded_up_by_itself(self):
        with AllocationMeter(round_to=512) as meter:
            kept = [torch.ones(1), torch.ones(128), torch.ones(129), torch.ones(0)]
        assert [block.nbytes for block in meter.blocks] == [512, 512, 1024, 0]
        assert meter.peak_bytes == 2048
        assert len(kept) == 4

    def test_reset_starts_from_what_is_alive(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
            torch.ones(1000)
            meter.reset()
            assert (meter.peak_bytes, meter.largest_bytes) == (400, 0)
            torch.ones(50)
            torch.ones(10)
        assert (meter.peak_bytes, meter.largest_bytes) == (600, 200)
        assert len(x) == 100

    def test_a_meter_inside_a_meter_changes_neither(self):
        tensors = inputs()
        with AllocationMeter() as outer, AllocationMeter() as inner:
            two_steps(self_attention, *tensors)
        assert outer.peak_bytes == inner.peak_bytes == counted(two_steps, self_attention, *inputs()).peak_bytes

    def test_over_capacity_is_out_of_memory_in_forward_and_in_backward(self):
        need = counted(two_steps, written_out, *inputs("meta")).peak_bytes
        assert counted(two_steps, written_out, *inputs("meta"), capacity_bytes=need).peak_bytes == need
        with pytest.raises(SimulatedOutOfMemoryError, match=f"{need:,} bytes alive, {need - 1:,} bytes of memory"):
            counted(two_steps, written_out, *inputs("meta"), capacity_bytes=need - 1)
        with pytest.raises(torch.OutOfMemoryError):
            counted(forward_only, written_out, *inputs("meta"), capacity_bytes=8 * SQUARE)


class TestTimeline:
    def test_names_and_operators_of_what_is_alive(self):
        with AllocationMeter(timeline=True) as meter:
            q, k, v = (meter.name("inputs", x) for x in inputs("meta"))
            loss = meter.name("loss", written_out(q, k, v, meter.name).sum())
            loss.backward()
        highest = max(meter.events[: [event.op for event in meter.events].index("aten::ones_like")], key=_live)
        labels = [block.label for block in highest.blocks]
        squares = [block.label for block in highest.blocks if block.shape == (BATCH, N, N)]
        assert labels == ["inputs"] * 3 + ["scores", "argmax", "shifted", "exponentials", "row_sums", "weights"]
        assert squares == ["scores", "shifted", "exponentials", "weights"]
        assert [block.dtype for block in highest.blocks].count("torch.int64") == 1
        last = max(meter.events, key=_live)
        assert (last.op, last.node) == ("aten::mul", "DivBackward0")
        assert "BmmBackward0: bmm" in [block.label for block in last.blocks]

    def test_every_event_adds_up_and_the_peak_is_one_of_them(self):
        meter = counted(two_steps, self_attention, *inputs("meta"), timeline=True)
        assert meter.peak_bytes == max(map(_live, meter.events))
        assert all(event.live_bytes == sum(block.nbytes for block in event.blocks) for event in meter.events)
        assert [event.peak_bytes for event in meter.events] == list(np.maximum.accumulate([*map(_live, meter.events)]))


def _live(event):
    return event.live_bytes


class TestRefusals:
    def test_no_cuda_statistics_without_a_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(RuntimeError, match="no CUDA device here"):
            CudaMeter()
        with pytest.raises(RuntimeError, match="no CUDA device here"):
            meter_for("cuda:0")

    def test_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.ones(3)
            with pytest.raises(RuntimeError, match="FakeTensorMode is on"):
                counted(torch.ones, 3)
        with pytest.raises(RuntimeError, match="FakeTensor"):
            counted(torch.add, fake, fake)

    def test_fake_cuda(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with AllocationMeter(), FakeTensorMode(), pytest.raises(RuntimeError, match="FakeTensorMode is on"):
            torch.ones(3, device="cuda")

    def test_other_devices_and_rounding_to_nothing(self):
        with pytest.raises(RuntimeError, match="no meter for device 'mps'"):
            meter_for("mps")
        with pytest.raises(ValueError, match="round_to"):
            AllocationMeter(round_to=0)

    def test_the_compiler_is_not_put_around_every_operator(self):
        assert not hasattr(AllocationMeter.__torch_dispatch__, "__wrapped__")


class TestMeasurePeak:
    def test_peak_over_the_baseline_and_result(self):
        x = torch.ones(1000)
        peak_bytes, kept_bytes, result = measure_peak(lambda a, scale: (a * scale).sum(), x, scale=3.0)
        assert (peak_bytes, kept_bytes, result.item()) == (4004, 4, 3000.0)

    def test_simulated(self):
        x = torch.empty(8, 16384, 128, device="meta")
        peak_bytes, _, result = measure_peak(lambda a: a @ a.transpose(1, 2), x)
        assert peak_bytes == 8 * 16384**2 * 4
        assert result.device.type == "meta"

    def test_without_tensors_the_default_device_decides(self, monkeypatch):
        with torch.device("meta"):
            assert measure_peak(lambda: torch.empty(10**15).shape)[0] == 4 * 10**15
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with torch.device("cuda"), pytest.raises(RuntimeError, match=r"CUDA|NVIDIA"):
            measure_peak(lambda: 0)

    @pytest.mark.gpu
    def test_cuda(self):
        kept = torch.ones(2**18, device="cuda")
        peak_bytes, _, _ = measure_peak(lambda x: (torch.empty_like(x), torch.empty_like(x))[0], kept)
        assert peak_bytes == 2 * 2**20


def saved_by_hooks(fn, *args):
    """Bytes that autograd's hooks are shown, each storage once, those of `args` and of the result left out."""
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
