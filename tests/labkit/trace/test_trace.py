"""`lab trace`: bytes equal to the meters' and the profiler's, attributed to the lines of the code that was traced."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.commands.check import trace_lines
from labkit.labs.catalog import ROOT, find_lab, find_labs, solution_file
from labkit.meters.profiler import profile_memory
from labkit.meters.tensors import measure_peak
from labkit.meters.tracing import THERE_BEFORE, Trace
from labkit.suite.results import Kind, State, TestResult
from labkit.trace.command import trace
from labkit.trace.inputs import INPUTS
from labkit.trace.offer import can_be_traced
from labkit.trace.page import page
from labkit.trace.record import record
from labkit.trace.shapes import CannotTrace, Shape, parse_shape
from labkit.trace.snapshot import read_snapshot
from labkit.trace.targets import find_target
from labkit.trace.thin import thinned
from labkit.trace.totals import by_kind, by_line, by_module, differences
from labstaff.release.leaks import find_leaks
from labstaff.traces import FOLDER, TRACES, chapter_page

CODE = """
import torch
from torch import nn


def naive(q, k, v):
    scores = q @ k.mT
    scores = scores / 8
    weights = scores.softmax(-1)
    return weights @ v


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient + 0 * x


def doubled(x):
    return Doubled.apply(x)


def checkpointed(q, k, v):
    return torch.utils.checkpoint.checkpoint(naive, q, k, v, use_reentrant=False)


def wrong(q, k):
    return q @ k  # shapes that do not fit


def inputs():
    return tuple(torch.ones(2, 4, 8, requires_grad=True) for _ in range(3))


def by_name():
    return {"v": torch.ones(1, 4, 8), "q": torch.ones(1, 4, 8), "k": torch.ones(1, 4, 8)}


class Net(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        return self.layers(x).tanh()


net = Net(16)


def makes_net():
    return Net(16)


def needs_values(x):
    return x * x.sum().item()


def untouched(x):
    raise NotImplementedError()
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(CODE)
    return file


def line(text: str) -> int:
    """The number of the only line of CODE that contains a text."""
    (number,) = [i for i, each in enumerate(CODE.splitlines(), 1) if text in each]
    return number


def traced(words: str, *shapes: tuple[int, ...], init: str | None = None, **options) -> Trace:
    """The trace of a target, on inputs of these shapes."""
    target = find_target([words], init=init)
    return record(target.function, target.inputs([Shape(shape) for shape in shapes]), **options)


def simulate(words: str, *shapes: tuple[int, ...], init: str | None = None, **options) -> Trace:
    """The same with fake tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return traced(words, *shapes, init=init, **options)


def both_passes(function, arguments):
    """The passes that `record` runs, for a meter."""
    results = function(*arguments)
    leading = [result for result in (results if isinstance(results, tuple) else (results,)) if result.requires_grad]
    torch.autograd.backward(leading, [torch.ones_like(result) for result in leading])
    return results


def line_of(made: Trace, stack: int | None) -> int | None:
    """The number of the innermost line of a stack."""
    return None if stack is None else made.lines[made.stacks[stack].lines[0]].number


def assert_adds_up(made: Trace) -> None:
    changes = [0] * (len(made.steps) + 1)
    for life in made.lives:
        if life.kind not in THERE_BEFORE:
            changes[life.born] += life.nbytes
            changes[len(made.steps) if life.died is None else life.died] -= life.nbytes
    assert list(accumulate(changes))[:-1] == list(map(made.bytes_at, range(len(made.steps))))
    assert made.peak_bytes == max(map(made.bytes_at, range(len(made.steps)))) == made.bytes_at(made.peak_step)
    assert all(life.kind for life in made.lives)


@pytest.mark.parametrize("name", ["naive", "checkpointed"])
@pytest.mark.parametrize("simulated", [False, True])
def test_the_peak_is_the_meters(code, name, simulated):
    shapes = [Shape((2, 32, 16))]
    made = (simulate if simulated else traced)(f"{code}:{name}", (2, 32, 16))
    target = find_target([f"{code}:{name}"])
    assert_adds_up(made)
    measured = measure_peak(both_passes, target.function, target.inputs(shapes))
    assert max(step.live_bytes for step in made.steps) == measured.peak_bytes
    assert [each.name for each in made.passes] == ["forward", "backward"]


MODELS = {
    "nanogpt_written_out": ("Attention", "64, 4", [(2, 96, 64)]),
    "nanogpt_flash": ("Attention", "64, 4, flash=True", [(2, 96, 64)]),
    "vit_block": ("ViTBlock", "64, 4", [(2, 50, 64)]),
    "vit_block_recomputed": ("ViTBlock", "64, 4, recompute=True", [(2, 50, 64)]),
    "llama_layer": ("LlamaLayer", "64, 8, 2, 160", [(2, 80, 64)]),
    "llama_layer_grouped": ("LlamaLayer", "64, 8, 2, 160, repeat=False", [(2, 80, 64)]),
    "mixtral_experts": ("Experts", "32, 96", [(2, 80, 32)]),
    "unet_block": ("UNetBlock", "16, 16, 8", [(2, 16, 16, 16)] * 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_peak_of_public_models_is_the_profilers(name):
    cls, init, shapes = MODELS[name]
    target = find_target([f"{ROOT}/docs/models.py:{cls}"], init=init)

    def inputs():
        target.function.zero_grad()
        return target.inputs([Shape(shape) for shape in shapes])

    both_passes(target.function, inputs())  # what only the first run allocates
    profiled = profile_memory(both_passes, target.function, inputs()).peak_bytes
    made = record(target.function, inputs())
    assert_adds_up(made)
    not_counted = {"nanogpt_written_out": 8, "vit_block_recomputed": 5056}  # both are named in the trace's notes
    assert profiled - made.peak_bytes == not_counted.get(name, 0)
    assert "8 bytes" in made.notes[0]
    assert "5,056 bytes" in made.notes[0]


def test_workspace_inside_a_kernel_is_a_block_of_its_own():
    target = find_target([f"{ROOT}/docs/models.py:Attention"], init="64, 4, flash=True")
    made = record(target.function, target.inputs([Shape((2, 96, 64))]))
    workspaces = [life for life in made.lives if life.kind == "workspace"]
    assert {life.op for life in workspaces} == {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
    assert all(made.steps[life.born].workspace_bytes == life.nbytes for life in workspaces)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixtral_experts"])
@pytest.mark.parametrize("steps", [1, 2])
def test_every_step_of_a_simulated_model_has_the_bytes_of_the_real_one(name, steps):
    cls, init, shapes = MODELS[name]
    options = {"steps": steps, "optimizer": torch.optim.AdamW} if steps > 1 else {}
    real = traced(f"{ROOT}/docs/models.py:{cls}", *shapes, init=init, **options)
    made = simulate(f"{ROOT}/docs/models.py:{cls}", *shapes, init=init, **options)
    assert_adds_up(made)
    assert [(step.op, step.live_bytes) for step in made.steps] == [(step.op, step.live_bytes) for step in real.steps]
    assert made.before_bytes == real.before_bytes
    assert "workspace" not in {life.kind for life in made.lives}
    for op in {step.op.removeprefix("aten::") for step in real.steps if step.workspace_bytes}:
        assert op in made.notes[0], "the page names the kernels whose workspace is missing"


AWKWARD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def factories(x):
    mask = torch.ones(x.shape[-1], x.shape[-1]).triu(1)
    return x @ mask + torch.arange(x.shape[-1]) + torch.tensor([1.0, 2.0]).sum() + torch.rand_like(x)


def in_place(x):
    y = x * 2
    y += 1
    y[..., 0] = 0
    z = torch.empty_like(y)
    torch.add(x.detach(), 1, out=z)
    return y.sum() + z.sum()


def views(x):
    y = (x * 1).view(-1, x.shape[-1]).t()[1:].unsqueeze(0).expand(4, -1, -1)
    a, b = y.chunk(2, -1)
    return (a.contiguous() + b).flatten().unfold(0, 8, 4).as_strided((10, 8), (4, 1)).sin()


class MLP(nn.Module):
    def __init__(self, width=64, form="plain"):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.form = form

    def body(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        if self.form == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return self.body(x).float().sum()
        if self.form == "checkpointed":
            return x + checkpoint(self.body, x + checkpoint(self.body, x, use_reentrant=False), use_reentrant=False)
        if self.form == "compiled":
            return torch.compile(self.body)(x)
        return self.body(x)


loaded = MLP()
loaded.load_state_dict({name: value + 0 for name, value in MLP().state_dict().items()})
if loaded.up.weight.abs().max().item() > 9:  # needs values: the file is loaded with real tensors
    raise ValueError
"""


@pytest.mark.parametrize(
    ("name", "init"),
    [
        *[(name, None) for name in ("factories", "in_place", "views", "loaded")],
        *[("MLP", f"form={form!r}") for form in ("autocast", "checkpointed")],
        pytest.param("MLP", "form='compiled'", marks=pytest.mark.slow),  # imports the compiler
    ],
)
def test_awkward_code_is_simulated_to_the_byte(tmp_path, name, init):
    file = tmp_path / "awkward.py"
    file.write_text(AWKWARD)
    if init and "compiled" in init:
        import torch._dynamo  # noqa: F401
    real, made = traced(f"{file}:{name}", (2, 16, 64), init=init), simulate(f"{file}:{name}", (2, 16, 64), init=init)
    assert made.peak_bytes == max(step.live_bytes for step in real.steps)
    assert made.before_bytes == real.before_bytes


def test_fused_attention_is_simulated_at_any_length():
    made = simulate(f"{ROOT}/docs/models.py:Attention", (1, 131072, 768), init="flash=True")
    written_out = simulate(f"{ROOT}/docs/models.py:Attention", (1, 131072, 768))
    scores = 4 * 12 * 131072**2
    assert max(life.nbytes for life in made.lives) < scores / 100
    assert max(life.nbytes for life in written_out.lives) == scores
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in {step.op for step in made.steps}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_torchs_tracker_agrees(name):
    from torch.distributed._tools.mem_tracker import MemTracker

    cls, init, shapes = MODELS[name]
    target = find_target([f"{ROOT}/docs/models.py:{cls}"], init=init)
    made = record(target.function, target.inputs([Shape(shape) for shape in shapes]))
    target.function.zero_grad()
    inputs = target.inputs([Shape(shape) for shape in shapes])
    tracker = MemTracker()
    tracker.track_external(target.function, *inputs)
    with tracker:
        both_passes(target.function, inputs)
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert peak - made.before_bytes == max(step.live_bytes for step in made.steps), "it sees no workspace"


def test_totals_by_module_kind_and_line():
    model = f"{ROOT}/docs/models.py:ViT"
    made = traced(model, (1, 20, 64), init="2, 64, 4", steps=1, optimizer=torch.optim.AdamW)
    step = made.peak_step
    alive = sum(life.nbytes for life in made.alive_at(step))
    assert sum(by_kind(made, step).values()) == sum(by_module(made, step).values()) == alive
    assert sum(by_line(made, step).values()) == alive
    weights = 4 * (64 * 256 + 256)
    end = by_module(made, len(made.steps) - 1)
    assert end["ViT.0.mlp.0"] == 4 * weights + 8, "weights, gradients, both moments, and two counts of steps"


def test_two_runs_differ_by_line_and_module():
    first, second = (traced(f"{ROOT}/docs/models.py:Attention", (1, 64, 64), init=i) for i in ("64, 4", "64, 4, True"))
    found = differences(first, second)
    assert found["line"][0] == ("forward: weights = scores.softmax(-1)", 2 * 4 * 4 * 64 * 64, 0)
    for rows in found.values():
        changed = sum(row.second_bytes - row.first_bytes for row in rows)
        assert changed == second.peak_bytes + second.before_bytes - first.peak_bytes - first.before_bytes
    assert differences(first, first) == {"line": [], "module": []}


def test_a_long_trace_is_thinned_with_exact_sums():
    made = traced(f"{ROOT}/docs/models.py:ViT", (1, 20, 64), init="6, 64, 4")
    assert thinned(made) is made
    short = thinned(made, most_steps=60, most_lives=80)
    assert_adds_up(short)
    assert len(short.steps) <= 65
    assert len([life for life in short.lives if life.kind != "rest"]) <= 81
    assert (short.peak_bytes, short.before_bytes) == (made.peak_bytes, made.before_bytes)
    assert short.steps[short.peak_step].op == made.steps[made.peak_step].op
    assert [each.name for each in short.passes] == ["forward", "backward"]
    assert f"of {len(made.steps):,} steps" in short.notes[-1]


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_the_solution_of_every_known_task_can_be_traced(lab):
    for task in lab.tasks:
        if not can_be_traced(lab, task):
            continue
        target = find_target([f"{solution_file(lab)}:{task.name}"])
        shape = (1, 2, 96, 16)
        made = INPUTS[task.name](shape) if task.name in INPUTS else target.inputs([Shape(shape)])
        found = record(target.function, made)
        assert_adds_up(found)
        assert found.peak_bytes > 0
        assert solution_file(lab).name in {each.file for each in found.lines}


def test_lines_are_those_of_the_code(code):
    made = traced(f"{code}:naive", (2, 32, 16))
    found = {(line_of(made, s.stack), s.op, s.for_gradient) for s in made.steps}
    assert (line("scores.softmax"), "aten::_softmax", False) in found
    assert (line("scores.softmax"), "aten::_softmax_backward_data", True) in found
    weights = next(life for life in made.lives if life.op == "aten::_softmax")
    assert (weights.shape, weights.nbytes, weights.kind) == ((2, 32, 32), 2 * 32 * 32 * 4, "activation")
    assert made.steps[weights.died - 1].node == "SoftmaxBackward0", "the last that needs the weights"


def test_a_functions_own_backward_is_attributed_to_its_own_lines(code):
    made = traced(f"{code}:doubled", (4, 4))
    own = [step for step in made.steps if step.node == "DoubledBackward" and step.op == "aten::mul"]
    assert [(line_of(made, step.stack), step.for_gradient) for step in own] == [(line("2 * gradient"), False)] * 2


def test_the_incoming_gradient_belongs_to_the_backward_call(code):
    made = traced(f"{code}:naive", (2, 32, 16))
    (ones,) = [life for life in made.lives if life.op == "aten::ones_like"]
    assert (ones.stack, ones.name) == (None, "gradient of the result, ones")
    assert made.pass_at(ones.born) == "backward"
    assert {each.file for each in made.lines} == {"code.py"}, "no line of the caller"


def test_tensors_of_a_module_have_names_and_stacks(code):
    made = traced(f"{code}:Net", (3, 16), init="16")
    named = {(life.kind, life.name) for life in made.lives if life.name}
    assert {("parameter", "layers.0.weight"), ("input", "x")} <= named
    assert {("gradient", "gradient of layers.0.weight"), ("gradient", "gradient of x")} <= named
    assert made.before_bytes == 4 * (2 * (16 * 16 + 16) + 3 * 16)
    product = next(life for life in made.lives if life.op == "aten::addmm")
    assert made.stacks[product.stack].module == "Net.layers.0"
    calls = [made.lines[number].number for number in made.stacks[product.stack].lines]
    assert calls == [line("self.layers(x).tanh()"), line("return self.inner(x)")]


def test_steps_with_an_optimizer(code):
    made = traced(f"{code}:net", (3, 16), steps=2, optimizer=torch.optim.AdamW)
    assert_adds_up(made)
    assert [each.name for each in made.passes] == ["forward", "backward", "optimizer"] * 2
    states = [life for life in made.lives if life.kind == "optimizer state"]
    assert {"exp_avg of layers.0.weight", "exp_avg_sq of layers.1.bias"} <= {life.name for life in states}
    assert all(made.pass_at(life.born) == "optimizer" and life.died is None for life in states)
    weights = [life for life in made.lives if life.name == "gradient of layers.0.weight"]
    assert [life.died is None for life in weights] == [False, True], "the first step's gradients are gone"


def test_inputs_from_a_function(code):
    with FakeTensorMode():
        target = find_target([f"{code}:naive"], factory=f"{code}:inputs")
        inputs = target.inputs([])
    assert [(type(x), x.shape, x.requires_grad) for x in inputs] == [(FakeTensor, (2, 4, 8), True)] * 3
    target = find_target([f"{code}:naive"], factory=f"{code}:by_name")
    made = record(target.function, target.inputs([]))
    assert [life.name for life in made.lives if life.kind == "input"] == ["v", "q", "k"]


def test_each_argument_can_have_its_own_shape(code):
    target = find_target([f"{code}:wrong"])
    assert [tuple(x.shape) for x in target.inputs([Shape((2, 3)), Shape((3, 2))])] == [(2, 3), (3, 2)]
    with pytest.raises(CannotTrace, match="needs 2 arguments"):
        target.inputs([Shape((1,)), Shape((2,)), Shape((3,))])
    assert parse_shape("1, 256:int") == Shape((1, 256), "int64")
    with pytest.raises(CannotTrace, match="whole numbers with commas"):
        parse_shape("2,3:complex")


@pytest.mark.parametrize(
    ("words", "init", "shape"),
    [
        ("CODE:net", None, (1, 256, 16)),
        ("CODE:Net", "8, depth=1", (1, 256, 8)),
        ("CODE:makes_net", "", (1, 256, 16)),
        ("CODE:naive", None, (1, 4, 256, 64)),
        ("CODE:Doubled", None, (1, 4, 256, 64)),
        ("torch.nn:Conv2d", "3, 8, 3", (1, 3, 64, 64)),
        ("torch.nn.functional:silu", None, (1, 4, 256, 64)),
    ],
)
@pytest.mark.parametrize("mode", [nullcontext, FakeTensorMode])
def test_targets_get_inputs_of_a_shape_that_fits(code, words, init, shape, mode):
    with mode():
        target = find_target([words.replace("CODE", str(code))], init=init)
        inputs = target.inputs([])
        assert (tuple(inputs[0].shape), isinstance(inputs[0], FakeTensor)) == (shape, mode is FakeTensorMode)
        assert record(target.function, inputs).peak_bytes > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["naive"], "is not a target"),
        (["nowhere.py:naive"], "there is no file nowhere.py"),
        (["CODE:nothing"], "has no function, class or module 'nothing'"),
        (["CODE:Net"], r"Net needs arguments, \(width, depth=2\): give its arguments with --init"),
        (["torch:bmm"], "has no readable signature"),
        (["no_such_package.at_all:Net"], "there is no file, lab or installed package no_such_package"),
        (["04", "tiled_attention"], "has no inputs here"),
    ],
)
def test_an_unknown_target_is_one_line(code, words, message):
    with pytest.raises(CannotTrace, match=message) as error:
        find_target([word.replace("CODE", str(code)) for word in words]).inputs([])
    assert "\n" not in str(error.value)


USUAL = dict.fromkeys(("against", "init", "inputs", "steps", "out"))
USUAL |= {"shape": ["1,2,32,16"], "forward_only": False, "simulate": False, "optimizer": "AdamW"}


def run_command(*words, **options):
    trace(list(words), **(USUAL | options))


def test_the_command_prints_the_peak_and_writes_files(code, tmp_path, capsys):
    files = [tmp_path / f"made/run.{ending}" for ending in ("html", "json", "svg", "png")]
    run_command(f"{code}:naive", against=f"{code}:checkpointed", out=files)
    printed = capsys.readouterr().out
    runs = json.loads(files[1].read_text())
    for run in runs:
        assert f"{run['name']}: {run['peak_bytes']:,} bytes at the peak, step {run['peak_step'] + 1} of" in printed
    assert f"code.py:{line('scores.softmax')}  weights = scores.softmax(-1)" in printed
    assert "over 12,288 bytes from before the run" in printed
    assert printed.count("written: ") == 4
    assert ElementTree.parse(files[2]).getroot().tag.endswith("svg")
    assert files[3].read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_the_default_shape(code, tmp_path, capsys):
    run_command(f"{code}:net", shape=None, steps=1, optimizer="SGD(lr=0.1, momentum=0.9)", out=[tmp_path / "run.html"])
    printed = capsys.readouterr().out
    assert re.search(r"[\d,]+ B  in \d+ more", printed)
    assert "inputs x 1 × 256 × 16 (the default; --shape gives others)" in printed
    assert "momentum_buffer of layers.0.weight" in (tmp_path / "run.html").read_text()
    with pytest.raises(SystemExit, match=r"torch\.optim has no optimizer 'SDG'"):
        run_command(f"{code}:net", steps=1, optimizer="SDG")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrong", {}, r"(?s)the code ended in RuntimeError: .*code\.py:\d+  return q @ k  # shapes that do not fit"),
        (
            "needs_values",
            {"simulate": True},
            r"^lab trace: aten\._local_scalar_dense\.default needs values, and --simulate has none:  "
            r"code\.py:\d+  return x \* x\.sum\(\)\.item\(\)$",
        ),
        ("untouched", {}, r"not implemented yet: code\.py:\d+"),
        ("naive", {"shape": ["2x3"]}, "--shape 2x3: whole numbers with commas"),
        ("naive", {"out": [Path("run.pdf")]}, "run.pdf: traces are written as .html, .json, .svg or .png"),
        ("naive", {"forward_only": True, "steps": 2}, "--forward-only makes no gradients, and --steps needs them"),
        ("naive", {"against": "nowhere.py:f"}, "there is no file nowhere.py"),
    ],
)
def test_an_error_names_its_line_or_option(code, name, options, message):
    with pytest.raises(SystemExit, match=message):
        run_command(f"{code}:{name}", **options)


FIRST, SECOND = 0x7F0000000000, 0x7F0000000800
FRAMES = [
    {"filename": "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
    {"filename": "/home/ann/train.py", "line": 7, "name": "forward"},
]
BLOCKS = [
    {"address": FIRST, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
    {"address": SECOND, "size": 2048, "requested_size": 1500, "state": "active_allocated", "frames": []},
]
HISTORY = [
    {"action": "alloc", "addr": SECOND, "size": 2000, "stream": 0, "frames": FRAMES},
    {"action": "free_requested", "addr": SECOND, "size": 2000, "stream": 0, "frames": []},
    {"action": "free_completed", "addr": SECOND, "size": 2000, "stream": 0, "frames": []},
    {"action": "alloc", "addr": SECOND, "size": 1500, "stream": 0, "frames": FRAMES},
    {"action": "annotate", "addr": SECOND, "size": 1500, "stream": 0, "user_metadata": "logits", "frames": FRAMES},
    {"action": "segment_alloc", "addr": SECOND, "size": 1500, "stream": 0, "frames": FRAMES},
    {"action": "oom", "size": 9000, "stream": 0, "device_free": 512, "frames": []},
]
SNAPSHOT = {"segments": [{"device": 0, "address": FIRST, "blocks": BLOCKS}], "device_traces": [HISTORY]}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_cuda_snapshot_is_a_trace(tmp_path, capsys, protocol):
    file = tmp_path / "dump.pickle"
    file.write_bytes(pickle.dumps(SNAPSHOT, protocol))
    ((name, made),) = read_snapshot(file)
    assert name == "dump.pickle, GPU 0"
    assert [(step.op, made.before_bytes + step.live_bytes) for step in made.steps] == [
        ("alloc", 3000),
        ("free_completed", 1000),
        ("alloc", 2500),
        ("out of memory: 9,000 bytes requested, 512 free", 2500),
    ]
    first = next(life for life in made.lives if life.nbytes == 2000)
    assert [made.lines[number].number for number in made.stacks[first.stack].lines] == [7], "torch's own are left out"
    assert [life.name for life in made.lives] == ["", "logits", ""]
    run_command(str(file), out=[tmp_path / "dump.html"])
    assert "dump.pickle, GPU 0: 2,000 bytes at the peak, step 1 of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(SNAPSHOT | {"more": Path("/")}), "asks for pathlib"),
        (pickle.dumps([1, 2]), "is not a snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[]]}), "nothing is allocated"),
        (b"no pickle", "dump.pickle: "),
    ],
)
def test_another_pickle_is_refused(tmp_path, content, message):
    file = tmp_path / "dump.pickle"
    file.write_bytes(content)
    with pytest.raises(CannotTrace, match=message):
        read_snapshot(file)


def test_a_page_runs_no_code_of_the_trace_and_loads_nothing(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("def f(x):\n    return x * 2  # </script><script>alert(1)</script> {{ data }}\n")
    target = find_target([f"{file}:f"])
    target.name = "<img src=x onerror=alert(1)> {{ script }}"
    text = page([(target.name, record(target.function, target.inputs([])))], back=("../a.html", "the course"))
    assert text.count("<script") == text.count("</script") == 2
    assert "<img" not in text
    assert "alert(1)" in text, "the line itself is shown"
    assert not re.search(r"https?://", text.replace("http://www.w3.org", ""))


def test_a_check_offers_what_can_be_traced():
    lab = find_lab("05")
    large = TestResult("test_x", "flash_backward", State.WRONG, drawn=True, kind=Kind.COST)
    assert trace_lines(lab, [large]) == ["see its memory: uv run lab trace 05 flash_backward"]
    assert trace_lines(lab, [TestResult("test_x", "flash_backward", State.WRONG, drawn=True, kind=Kind.EXACT)]) == []
    tiled = TestResult("test_x", "tiled_attention", State.WRONG, drawn=True, kind=Kind.COST)
    assert trace_lines(find_lab("04"), [tiled]) == []
    kernel = TestResult("test_x", "flash_forward", State.WRONG, drawn=True, kind=Kind.COST)
    assert trace_lines(find_lab("10"), [kernel]) == [], "what kernels do, no operator shows"


@pytest.mark.parametrize("name", TRACES)
def test_the_chapters_traces_are_up_to_date(name):
    saved = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    chapter, _ = TRACES[name]
    assert f'href="../../{chapter}.html"' in saved
    assert f"_static/traces/{name}.html" in (ROOT / "docs" / f"{chapter}.md").read_text(encoding="utf-8")
    assert saved == chapter_page(name), "make them again: uv run python -m labstaff.traces"


def test_the_chapters_traces_contain_no_solution():
    assert find_leaks(find_labs(), FOLDER.glob("*.html")) == []


GUIDE = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
PRINTED = re.findall(r"```bash\nuv run lab (trace [^\n]+)\n```\n\n```text\n([^`]+)```", GUIDE)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "printed"), PRINTED, ids=[command for command, _ in PRINTED])
def test_the_guides_commands_print_its_output(command, printed, tmp_path):
    torch.set_num_threads(1)  # workspace depends on it
    ran = CliRunner().invoke(app, [*shlex.split(command), "--out", str(tmp_path / "run.html")])
    assert [line for line in printed.splitlines() if line not in ran.output.splitlines()] == [], ran.output


def test_the_guides_savings_are_differences_of_its_peaks():
    assert len(PRINTED) == 7
    saved = [int(number.replace(",", "")) for number in re.findall(r"([\d,]{8,}) bytes", GUIDE)]
    peaks = [int(re.search(r"([\d,]+) bytes at", text)[1].replace(",", "")) for _, text in PRINTED]
    for more, less in ((0, 1), (2, 3), (4, 5), (5, 6)):
        assert peaks[more] - peaks[less] in saved
