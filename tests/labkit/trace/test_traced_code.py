"""`lab trace` of what people trace besides plain models: equal to the profiler's record, or refused in one line."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.fsdp import fully_shard
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

from labkit.meters.allocation import RESIZE, AllocationMeter
from labkit.meters.profiler import SCALAR_BYTES, profile_memory
from labkit.meters.torch_private import FakeTensorMode
from labkit.ranks.processes import LOOPBACK
from labkit.trace.command import error_text
from labkit.trace.record import record
from labkit.trace.shapes import CannotTrace
from tests.labkit.trace.test_trace import assert_adds_up, both_passes

CASES = {}
N = 1000
X = torch.ones(N)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(action="ignore"):  # sparse, nested and quantized tensors say that they may change
        yield


def case(make):
    """A function that returns what is traced and its arguments, new each time."""
    CASES[make.__name__] = make
    return make


@case
def given_back():
    def function(x):
        a = x * 2
        a.untyped_storage().resize_(0)
        return x.exp().sin().sum()

    return function, [X]


@case
def resized_again_and_again():
    def function(x):
        storage = x.exp().untyped_storage()
        for nbytes in (0, 8 * N, 12 * N, 4 * N):
            storage.resize_(nbytes)
        return x.exp().sum()

    return function, [X]


@case
def older_memory_resized():
    older = torch.empty(N)
    older.untyped_storage().resize_(0)

    def function(x):
        older.untyped_storage().resize_(4 * N)
        torch.exp(x, out=older)
        older.untyped_storage().resize_(0)
        return x.exp().sum()

    return function, [X]


@case
def resized_by_an_operator_without_result():
    import torch._inductor  # it registers the operator

    def function(x):
        a = x.exp()
        torch.ops.inductor.resize_storage_bytes_(a, 0)
        return x.exp().sin().sum()

    return function, [X]


@case
def resized_in_place():
    return lambda x: x.exp().resize_(3 * N).sum(), [X]


@case
def storage_made_by_hand():
    return lambda x: torch.empty(0).set_(torch.UntypedStorage(8 * N)).sum() + x.exp().sum(), [X]


@case
def data_exchanged():
    def function(x):
        a = x.exp()
        a.data = torch.empty(0)
        return x.exp().sin().sum()

    return function, [X]


def adjacency():
    return torch.eye(64).roll(1, 0) + torch.eye(64)


@case
def sparse_product():
    return lambda a, x: torch.sparse.mm(a.to_sparse(), x).sum(), [adjacency(), torch.ones(64, 32, requires_grad=True)]


@case
def sparse_argument():
    sparse = adjacency().to_sparse()
    return lambda a, x: torch.sparse.mm(a, x).sum(), [sparse, torch.ones(64, 32, requires_grad=True)]


@case
def compressed_rows():
    return lambda a, x: (a.to_sparse_csr() @ x).sum(), [adjacency(), torch.ones(64, 32)]


@case
def sparse_gradient():
    return nn.Embedding(500, 32, sparse=True), [torch.arange(100)]


@case
def sparse_gradient_of_a_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.linear = nn.Embedding(500, 32, sparse=True), nn.Linear(32, 64)

        def forward(self, ids):
            return (self.linear(self.embedding(ids)) * self.linear(self.embedding(ids + 1)).relu()).sum()

    return Model(), [torch.arange(100)]


@case
def jagged():
    def function(x, y):
        return torch.relu(torch.nested.as_nested_tensor([x, y], layout=torch.jagged)).values().sum()

    return function, [torch.ones(30, 16, requires_grad=True), torch.ones(50, 16, requires_grad=True)]


@case
def nested():
    def function(x, y):
        both = torch.nested.as_nested_tensor([x, y])
        return torch.nested.to_padded_tensor(torch.relu(both), 0.0).sum()

    return function, [torch.ones(30, 16, requires_grad=True), torch.ones(50, 16, requires_grad=True)]


@case
def quantized():
    def function(x):
        scales, zeros = torch.ones(len(x)), torch.zeros(len(x))
        return torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8).dequantize().sum()

    return function, [torch.ones(100, 50)]


@case
def complex_numbers():
    return lambda x: torch.fft.fft(x).abs().square().sum(), [torch.ones(16, 128, requires_grad=True)]


@case
def views():
    def function(x):
        return x.view(10, 100).t()[5:, ::2].expand(3, 95, 5).permute(2, 0, 1).contiguous().sum()

    return function, [torch.ones(N, requires_grad=True)]


@case
def in_place():
    return lambda x: x.exp().relu_().sqrt_().sin().sum(), [torch.ones(N)]


@case
def transformer():
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    return model, [torch.ones(2, 20, 32, requires_grad=True), torch.ones(2, 20, 32, requires_grad=True)]


@case
def lstm():
    model = nn.LSTM(32, 64, 2)
    return lambda x: model(x)[0], [torch.ones(10, 4, 32, requires_grad=True)]


@case
def recomputed():
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    options = {"use_reentrant": False, "preserve_rng_state": False}
    return lambda x: checkpoint(mlp, x, **options), [torch.ones(32, 64, requires_grad=True)]


@case
def weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)), [torch.ones(32, 64, requires_grad=True)]


@case
def vectorised_gradients():
    def function(w, x):
        return vmap(grad(lambda w, x: (x @ w).tanh().sum()), (None, 0))(w, x).sum()

    return function, [torch.ones(32, 32), torch.ones(8, 4, 32)]


@case
def automatic_precision():
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return mlp(x).float().sum()

    return function, [torch.ones(32, 64, requires_grad=True)]


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_the_profilers(name):
    both_passes(*CASES[name]())  # what only the first run allocates
    torch.manual_seed(0)
    profiled = profile_memory(both_passes, *CASES[name]()).peak_bytes
    torch.manual_seed(0)
    made = record(*CASES[name]())
    assert_adds_up(made)
    assert profiled - made.peak_bytes in (0, SCALAR_BYTES)  # a number of Python as an operand is not counted


def test_a_resize_without_an_operator_is_a_step_with_its_line():
    made = record(*given_back())
    (number,) = (i for i, step in enumerate(made.steps) if step.op == RESIZE)
    assert [made.bytes_at(number - 1), made.bytes_at(number)] == [4 * N, 0]
    line = made.lines[made.stacks[made.steps[number].stack].lines[0]]
    assert line.text == "a.untyped_storage().resize_(0)"


def test_a_resize_counts_alike_in_a_simulated_run():
    real = record(*resized_again_and_again())
    with FakeTensorMode():
        simulated = record(resized_again_and_again()[0], [torch.ones(N)])
    assert [step.live_bytes for step in real.steps] == [step.live_bytes for step in simulated.steps]


def test_meters_of_two_threads_see_their_own_resizes():
    peaks = {}
    both_inside = threading.Barrier(2, timeout=20)

    def measure(name, nbytes):
        with AllocationMeter() as meter:
            both_inside.wait()
            storage = torch.ones(N).untyped_storage()
            storage.resize_(0)
            storage.resize_(nbytes)
            both_inside.wait()
            peaks[name] = meter.peak_bytes, meter.live_bytes

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(measure, "ab", [5 * N, 6 * N]))
    assert peaks == {"a": (5 * N, 5 * N), "b": (6 * N, 6 * N)}


def test_a_sharded_model_gives_its_gathered_parameters_back(monkeypatch):
    def sharded():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU()) for _ in range(4)))
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        return fully_shard(model, mesh=mesh)

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(128, 256)
        profiled = profile_memory(both_passes, sharded(), [x]).peak_bytes
        made = record(sharded(), [x])
    finally:
        dist.destroy_process_group()
    assert_adds_up(made)
    assert made.peak_bytes == profiled
    assert any(step.op == RESIZE for step in made.steps)


def test_a_forward_pass_alone_keeps_nothing_for_a_backward_pass():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    x = torch.ones(32, 64, requires_grad=True)
    made = record(model, [x], backward=False)
    assert made.peak_bytes == 2 * 32 * 64 * 4  # a layer's input and its output
    assert made.notes[0].startswith("The forward pass alone, in torch.no_grad(); the module is in training mode")
    assert record(model.eval(), [x], backward=False).notes[0] == "The forward pass alone, in torch.no_grad()."


def test_lbfgs_gets_both_passes_as_its_closure():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model()

        def forward(self, x):
            return self.model(x).square().mean()

    def train(loss_of, x):
        optimizer = torch.optim.LBFGS(loss_of.parameters(), max_iter=4)
        for number in range(2):

            def closure():
                loss = loss_of(x)
                loss.backward()
                return loss

            optimizer.step(closure)
            if not number:
                for parameter in loss_of.parameters():
                    parameter.grad = None

    x = torch.ones(16, 64)
    profiled = profile_memory(train, Loss(), x).peak_bytes
    made = record(Loss(), [x], steps=2, optimizer=lambda owned: torch.optim.LBFGS(owned, max_iter=4))
    assert_adds_up(made)
    assert abs(profiled - made.peak_bytes) <= SCALAR_BYTES
    assert {each.name for each in made.passes} == {"forward", "backward", "optimizer"}
    assert any(life.kind == "optimizer state" and life.name.startswith("old_dirs") for life in made.lives)


def test_forward_mode_derivatives_are_said_to_be_counted_too_high():
    def function(x, tangent):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual((forward_ad.make_dual(x, tangent) * 2).sin()).tangent.sum()

    made = record(function, [X, X])
    assert made.peak_bytes > profile_memory(function, X, X).peak_bytes
    assert any(note.startswith("Forward-mode derivatives") for note in made.notes)


def in_a_thread(x):
    results = []
    thread = threading.Thread(target=lambda: results.append(x.exp()))
    thread.start()
    thread.join()
    return results[0]


def in_a_pool(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x.exp()).result()


def piece_by_piece(x):
    yield x.exp()


async def later(x):
    return x.exp()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (in_a_thread, r"another thread, .*test_traced_code\.py:\d+  thread = threading|another thread.*x\.exp\(\)"),
        (in_a_pool, r"another thread, .*x\.exp\(\)"),
        (piece_by_piece, "a generator came back"),
        (later, "a coroutine came back"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_no_trace_follows_is_one_line(function, message):
    with pytest.raises(CannotTrace, match=message) as caught:
        record(function, [torch.ones(4)])
    assert "\n" not in str(caught.value)


def test_a_thread_without_operators_is_no_matter():
    def function(x):
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        return x.exp()

    assert record(function, [X]).peak_bytes == 4 * N


def test_a_tensor_that_shows_no_memory_is_one_line_that_does_not_blame_the_code():
    with pytest.raises(RuntimeError) as caught:
        record(lambda x: x.to_mkldnn().to_dense(), [torch.ones(10, 10)])
    text = error_text(caught.value)
    assert text.startswith("lab trace: a tensor in the layout torch._mkldnn shows no memory to count:  test_traced")
    assert "\n" not in text
