"""Triton kernels: watched in the interpreter, compiled without a GPU, and what `lab kernel` prints."""

from __future__ import annotations

import json
import os
import sys

import pytest

from labkit.labs.catalog import find_lab
from labkit.meters.kernels import adapter
from labkit.suite import finder

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Triton exists for Linux alone")
os.environ.setdefault(adapter.SWITCH, "1")  # before anything imports Triton

LAB = find_lab("10")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
SHIFT = HEAD + (
    "@triton.jit\n"
    "def shift_kernel(x, out, n, BLOCK: tl.constexpr):\n"
    "    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "    inside = places < n\n"
    "    tl.store(out + places, tl.load(x + places, mask=inside, other=0.0) + 1.0, mask=inside)\n"
    "\n\n"
    "def shift(x):\n"
    "    out = torch.empty_like(x)\n"
    "    shift_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)\n"
    "    return out\n"
)


@pytest.fixture
def shift(tmp_path):
    """A function that loads the module above after a change and runs `shift` on 37 numbers."""
    from labkit.kernels.table import load_target
    from labkit.meters.kernels.calls import kernel_call

    def run(old="", new="", **options):
        import torch

        assert old in SHIFT
        file = tmp_path / "shifted.py"
        file.write_text(SHIFT.replace(old, new) if old else SHIFT, encoding="utf-8")
        return kernel_call(load_target(file, "shift"), {"x": torch.arange(37.0)}, **options)

    return run


def test_this_version_is_known():
    assert adapter.version() in adapter.KNOWN_VERSIONS
    assert adapter.interpreter().__name__ == "triton.runtime.interpreter"
    with adapter.compiler() as second:
        assert second.name("triton.runtime.jit", "JITFunction")


def test_another_version_is_a_sentence(monkeypatch):
    import triton.runtime.interpreter

    monkeypatch.delattr(triton.runtime.interpreter.InterpreterBuilder, "create_masked_load")
    with pytest.raises(adapter.UnknownTriton, match=r"is not one of those known here .*create_masked_load"):
        adapter.interpreter()


def test_without_triton(monkeypatch):
    monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(adapter.UnknownTriton, match="comes with torch for Linux"):
        adapter.interpreter()


def test_the_interpreter_is_there_again_after_the_compiler(shift):
    with adapter.compiler():
        pass
    got, seen = shift()
    assert got.tolist() == [x + 1 for x in range(37)]
    assert seen["problems"] == []


def test_what_was_hooked_is_let_go(shift):
    module = adapter.interpreter()
    before = module.InterpreterBuilder.create_masked_load
    shift()
    assert module.InterpreterBuilder.create_masked_load is before


def test_bytes(shift):
    _, seen = shift()
    assert (seen["loaded"], seen["stored"], seen["launches"]) == ({"x": 148}, {"out": 148}, 1)


def test_bytes_of_a_copy_are_not_those_of_an_argument(shift):
    assert shift()[1]["of_arguments"] == {"x": 148}
    _, seen = shift("(x, out, x.numel()", "(x.clone(), out, x.numel()")
    assert (seen["loaded"], seen["of_arguments"]) == ({"x": 148}, {})


def test_offsets_in_int32_are_collected(shift):
    with adapter.int32_products() as found:
        shift()
    assert max(found) == 32  # of the third program
    with adapter.int32_products() as found:
        shift("tl.program_id(0) * BLOCK", "tl.program_id(0).to(tl.int64) * BLOCK")
    assert max(found, default=0) < 32


@pytest.mark.parametrize(
    ("stack", "fits", "says"), [(0, True, "yes"), (8, False, "registers spill"), (0, False, "shared memory")]
)
def test_what_spills_does_not_fit(capsys, stack, fits, says):
    from labkit.commands.kernel import WRITERS, Form
    from labkit.kernels.table import Row

    WRITERS[Form.text]([Row("shift_kernel", 80, {}, 4, 2, stack=stack, fits=fits)])
    assert capsys.readouterr().out.splitlines()[1].endswith(says)


def test_programs_that_load(shift):
    assert shift()[1]["readers"] == {"x": 3}
    assert shift("(triton.cdiv(x.numel(), 16),)", "(1,)")[1]["readers"] == {"x": 1}


def test_a_load_past_the_end(shift):
    got, seen = shift("tl.load(x + places, mask=inside, other=0.0)", "tl.load(x + places)")
    assert got.tolist() == [x + 1 for x in range(37)]
    (problem,) = seen["problems"]
    assert (problem["kind"], problem["use"], problem["tensor"], problem["element"]) == ("outside", "load", "x", 37)


def test_a_store_past_the_end(shift):
    _, seen = shift(" + 1.0, mask=inside)", " + 1.0)")
    assert [(p["kind"], p["use"], p["tensor"]) for p in seen["problems"]] == [("outside", "store", "out")]


def test_programs_that_meet(shift):
    _, seen = shift("tl.program_id(0) * BLOCK", "tl.program_id(0) * 8")
    assert {(p["kind"], p["tensor"]) for p in seen["problems"]} == {("meets", "out")}


def test_atomic_additions_may_meet(shift):
    store = "tl.store(out + places, tl.load(x + places, mask=inside, other=0.0) + 1.0, mask=inside)"
    atomic = "tl.atomic_add(out + places % 4, tl.load(x + places, mask=inside, other=0.0), mask=inside)"
    assert shift(store, atomic)[1]["problems"] == []


def test_arguments_are_not_written(shift):
    _, seen = shift("tl.store(out +", "tl.store(x +")
    assert "input" in {p["kind"] for p in seen["problems"]}


def test_lanes_left_open_hold_nan(shift):
    load, open_load = "tl.load(x + places, mask=inside, other=0.0)", "tl.load(x + places, mask=places < 3)"
    assert shift(load, open_load)[0][:4].isnan().tolist() == [False, False, False, True]
    assert shift(load, open_load, garbage=False)[0][:4].tolist() == [1, 2, 3, 1]


def test_what_a_kernel_raises_comes_as_it_is_and_from_its_line(shift):
    with pytest.raises(NameError, match="nothing_of_this_name") as raised:
        shift("places < n", "places < nothing_of_this_name")
    assert raised.traceback[-1].lineno == 8  # counted from 0


def lab_kernel(*arguments):
    from typer.testing import CliRunner

    from labkit.commands.app import app

    return CliRunner().invoke(app, ["kernel", *arguments])


def test_a_kernel_of_any_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SHIFT, encoding="utf-8")
    types = ["--type", "x=*fp32", "--type", "out=*fp32", "--type", "n=i32", "--set", "BLOCK=64,256"]
    run = lab_kernel(f"{file}:shift_kernel", *types, "--arch", "80", "--warps", "4", "--format", "json")
    assert run.exit_code == 0, run.output
    rows = json.loads(run.stdout)
    assert [(row["BLOCK"], row["arch"], row["stack"], row["problem"]) for row in rows] == [
        (64, 80, 0, ""),
        (256, 80, 0, ""),
    ]
    assert all(0 < row["registers"] <= 255 for row in rows)


def test_block_pointers_are_named_as_what_is_missing(tmp_path, shift):
    from labkit.suite.messages import explain
    from labkit.suite.results import State

    file, signature = tmp_path / "shifted.py", "def shift(x, *others):"
    old, new = "tl.load(x + places, mask=inside, other=0.0)", "tl.load(tl.make_block_ptr(x, (n,), (1,), 0, 16, 0))"
    with pytest.raises(NotImplementedError) as caught:
        shift(old, new)
    state, failure = explain(caught.value, [file])
    assert state is State.CRASHED
    assert failure.cause.endswith("load from pointers, or by tl.make_tensor_descriptor")
    file.write_text(SHIFT.replace(old, new).replace("def shift(x):", signature), encoding="utf-8")
    run = lab_kernel(f"{file}:shift")
    assert str(run.exception).startswith("lab kernel: Triton has not implemented this: Block pointers")


def test_what_the_compiler_refuses_is_printed():
    from labkit.kernels import example

    types = ["--type", "A=*fp16", "--type", "B=*fp16", "--type", "C=*fp16", "--type", "m=i32", "--type", "n=i32"]
    sets = ["--type", "k=i32", "--set", "BLOCK_M=32", "--set", "BLOCK_N=32", "--set", "BLOCK_K=8,32"]
    target = f"{example.__file__}:product_kernel"
    run = lab_kernel(target, *types, *sets, "--arch", "80", "--warps", "4")
    assert run.exit_code == 0, run.output
    refused, taken = run.stdout.splitlines()[1:3]
    assert "K >= 16" in refused
    assert taken.endswith("yes")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py:kernel"], "there is no file nowhere.py"),
        (["kernel"], "a file and a name"),
        (["--arch", "75"], "--arch 75: one of 80, 90"),
        (["--blocks", "64"], "--blocks 64: like 64x64"),
        (["--dtype", "fp8"], "--dtype fp8: one of fp16, fp32, bf16"),
    ],
)
def test_a_mistyped_command_is_one_line(arguments, says):
    run = lab_kernel(*arguments)
    assert run.exit_code == 1
    assert says in str(run.exception) + run.output


def test_no_ptx():
    from labkit.kernels.resources import resources

    with pytest.raises(ValueError, match="ptxas refuses the kernel"):
        resources("hello", 0, 80)


def test_the_products_of_tensor_cores_are_found():
    from labkit.kernels.table import example_launches, rows_of

    half, single = (next(rows_of(example_launches(32, 32, dtype), {}, 80, 4, 2)) for dtype in ("fp16", "fp32"))
    assert half.products > 0
    assert (single.products, single.tf32) == (0, 0)


def test_on_another_platform_the_lab_says_so(monkeypatch):
    monkeypatch.setattr(finder.sys, "platform", "darwin")
    assert finder.platform_problem(LAB) == "needs Linux, and this is darwin: open the course in its container"
    assert finder.platform_problem(find_lab("01")) is None


@pytest.mark.parametrize(
    ("installed", "message"), [("3.2.0", "there is 3.2.0 here"), (None, "needs triton, which is not installed")]
)
def test_an_older_triton_is_reported(monkeypatch, installed, message):
    def version(name):
        if name == "triton" and installed is None:
            raise finder.PackageNotFoundError(name)
        return installed or "3.10.0"

    monkeypatch.setattr(finder, "version", version)
    assert message in finder.platform_problem(LAB)
    monkeypatch.setattr(finder, "version", lambda name: "3.10.0")
    assert finder.platform_problem(LAB) is None


def test_board_and_check_on_another_platform(monkeypatch, capsys):
    from labkit.commands.board import problem_lines
    from labkit.commands.check import check_lab

    monkeypatch.setattr(finder.sys, "platform", "darwin")
    assert "lab10: needs Linux" in str(problem_lines([LAB])[0])
    assert check_lab(LAB) == 1
    assert "lab10 · needs Linux" in capsys.readouterr().out
