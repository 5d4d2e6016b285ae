"""Traces: exact by the meters that the suites trust, told by the lines of the code that was traced."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from labkit.commands.check import trace_lines
from labkit.labs.catalog import find_lab, find_labs, solution_file
from labkit.meters.tensors import measure_peak
from labkit.suite.verdict import Kind, State, Verdict
from labkit.trace.command import shape_of, trace
from labkit.trace.offer import can_be_traced
from labkit.trace.page import page, write
from labkit.trace.record import record
from labkit.trace.targets import INPUTS, CannotTrace, find_target
from labstaff.release.leaks import find_leaks
from labstaff.traces import FOLDER, TRACES

CODE = """
import torch


def naive(q, k, v):
    scores = q @ k.mT
    scores = scores / 8
    weights = scores.softmax(-1)
    return weights @ v


def forks(q, k, v):
    a = torch.exp(q)
    return a * k + a.max(-1, keepdim=True).values * v, (a + a).gather(-1, torch.zeros(a.shape, dtype=torch.long))


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
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(CODE)
    return file


def line(text: str) -> int:
    """The number of the one line of CODE that holds a text."""
    (number,) = [i for i, each in enumerate(CODE.splitlines(), 1) if text in each]
    return number


def both_passes(function, arguments):
    """What `record` runs, for a meter."""
    results = function(*arguments)
    leading = [result for result in (results if isinstance(results, tuple) else (results,)) if result.requires_grad]
    torch.autograd.backward(leading, [torch.ones_like(result) for result in leading])
    return results


def assert_adds_up(made):
    for i, step in enumerate(made.steps):
        assert sum(life.nbytes for life in made.lives if life.alive_at(i)) == step.live_bytes, (i, step)
    assert made.peak_bytes == max(step.live_bytes for step in made.steps) == made.steps[made.peak_step].live_bytes


@pytest.mark.parametrize("name", ["naive", "forks", "checkpointed"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_peak_is_the_meters(code, name, device):
    target = find_target([f"{code}:{name}"])
    made = record(target.function, target.inputs([(2, 32, 16)], device))
    assert_adds_up(made)
    assert (
        made.peak_bytes == measure_peak(both_passes, target.function, target.inputs([(2, 32, 16)], device)).peak_bytes
    )
    assert 0 < made.forward_steps < len(made.steps)


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_solutions_of_all_tasks_that_are_offered(lab):
    for task in lab.tasks:
        if not can_be_traced(lab, task):
            continue
        target = find_target([f"{solution_file(lab)}:{task.name}"])
        function = getattr(target.function, "apply", target.function)
        shape = (1, 2, 96, 16)
        made = INPUTS[task.name](shape, "cpu") if task.name in INPUTS else target.inputs([shape], "cpu")
        found = record(function, made)
        assert_adds_up(found)
        assert found.peak_bytes > 0
        assert solution_file(lab).name in {each.file for each in found.lines}


def test_every_task_with_inputs_is_offered():
    offered = {task.name for lab in find_labs() for task in lab.tasks if can_be_traced(lab, task)}
    assert set(INPUTS) <= offered


def test_lines_are_those_of_the_code(code):
    target = find_target([f"{code}:naive"])
    made = record(target.function, target.inputs([(2, 32, 16)], "cpu"))
    told = {(made.lines[s.line].number, s.op, s.for_gradient) for s in made.steps if s.line is not None}
    assert (line("scores.softmax"), "aten::_softmax", False) in told
    assert (line("scores.softmax"), "aten::_softmax_backward_data", True) in told
    weights = next(life for life in made.lives if life.op == "aten::_softmax")
    assert (weights.shape, weights.nbytes) == ((2, 32, 32), 2 * 32 * 32 * 4)
    assert made.steps[weights.died - 1].node == "SoftmaxBackward0", "the last that needs the weights"


def test_a_function_s_own_backward_is_told_by_its_own_lines(code):
    target = find_target([f"{code}:doubled"])
    made = record(target.function, target.inputs([(4, 4)], "cpu"))
    own = [step for step in made.steps if step.node == "DoubledBackward" and step.op == "aten::mul"]
    assert [(made.lines[step.line].number, step.for_gradient) for step in own] == [(line("2 * gradient"), False)] * 2


def test_the_forward_pass_alone(code):
    target = find_target([f"{code}:naive"])
    made = record(target.function, target.inputs([(2, 32, 16)], "cpu"), backward=False)
    assert made.forward_steps == len(made.steps)
    assert made.peak_bytes == measure_peak(target.function, *target.inputs([(2, 32, 16)], "cpu")).peak_bytes


def test_inputs_of_ones_own(code):
    target = find_target([f"{code}:naive"], f"{code}:inputs")
    assert [x.shape for x in target.inputs([], "meta")] == [(2, 4, 8)] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["naive"], "names no function"),
        (["nowhere.py:naive"], "there is no file nowhere.py"),
        (["CODE:nothing"], "has no function 'nothing'"),
        (["04", "tiled_attention"], "takes no tensors of torch that are known here"),
    ],
)
def test_what_cannot_be_traced_is_one_line(code, words, said):
    with pytest.raises(CannotTrace, match=said) as error:
        find_target([word.replace("CODE", str(code)) for word in words])
    assert "\n" not in str(error.value)


def test_shapes_for_each_argument(code):
    target = find_target([f"{code}:wrong"])
    assert [tuple(x.shape) for x in target.inputs([(2, 3), (3, 2)], "cpu")] == [(2, 3), (3, 2)]
    with pytest.raises(CannotTrace, match="needs 2 arguments"):
        target.inputs([(1,), (2,), (3,)], "cpu")
    with pytest.raises(SystemExit, match="whole numbers with commas"):
        shape_of("2x3")


def run_command(*words, **options):
    usual = {
        "against": None,
        "shape": ["1,2,32,16"],
        "inputs": None,
        "forward_only": False,
        "simulate": False,
        "out": None,
    }
    trace(list(words), **(usual | options))


def test_the_command_says_the_peak_and_writes(code, tmp_path, capsys):
    files = [tmp_path / f"made/run.{ending}" for ending in ("html", "json", "svg", "png")]
    run_command(f"{code}:naive", against=f"{code}:checkpointed", out=files)
    said = capsys.readouterr().out
    runs = json.loads(files[1].read_text())
    for run in runs:
        assert f"{run['name']}: {run['peak_bytes']:,} bytes at the peak, step {run['peak_step'] + 1} of" in said
    assert f"code.py:{line('scores.softmax')}  weights = scores.softmax(-1)" in said
    assert said.count("written: ") == 4
    assert ElementTree.parse(files[2]).getroot().tag.endswith("svg")
    assert files[3].read_bytes().startswith(b"\x89PNG")


def test_an_error_of_the_code_is_told_with_its_line(code):
    with pytest.raises(SystemExit) as error:
        run_command(f"{code}:wrong")
    told = str(error.value.code).splitlines()
    assert told[0].startswith("lab trace: the code ended in RuntimeError: ")
    assert told[-1].split(maxsplit=1) == [f"code.py:{line('do not fit')}", "return q @ k  # shapes that do not fit"]


def test_an_untouched_task_is_told_so(tmp_path):
    file = tmp_path / "stub.py"
    file.write_text("def f(x):\n    raise NotImplementedError()\n")
    with pytest.raises(SystemExit, match=r"not implemented yet: stub\.py:2"):
        run_command(f"{file}:f")


def test_other_endings_are_refused(code, tmp_path):
    with pytest.raises(SystemExit, match=r"\.html, \.json, \.svg or \.png"):
        run_command(f"{code}:naive", out=[tmp_path / "run.pdf"])


def test_nothing_in_a_page_acts_or_asks_for_anything(tmp_path):
    file = tmp_path / "sly.py"
    file.write_text("def f(x):\n    return x * 2  # </script><script>alert(1)</script> {{ data }}\n")
    target = find_target([f"{file}:f"])
    target.name = "<img src=x onerror=alert(1)> {{ script }}"
    text = page([(target.name, record(target.function, target.inputs([], "meta")))])
    assert text.count("<script") == text.count("</script") == 2
    assert "<img" not in text
    assert "alert(1)" in text, "the line itself is shown"
    assert not re.search(r"https?://", text.replace("http://www.w3.org", ""))


def test_a_check_offers_what_can_be_traced():
    lab = find_lab("05")
    large = Verdict("test_x", "flash_backward", State.WRONG, (), True, Kind.SMALL)
    assert trace_lines(lab, [large]) == ["see its memory: uv run lab trace 05 flash_backward"]
    assert trace_lines(lab, [Verdict("test_x", "flash_backward", State.WRONG, (), True, Kind.EXACT)]) == []
    assert trace_lines(find_lab("04"), [Verdict("test_x", "tiled_attention", State.WRONG, (), True, Kind.SMALL)]) == []
    kernel = Verdict("test_x", "flash_forward", State.WRONG, (), True, Kind.SMALL)
    assert trace_lines(find_lab("10"), [kernel]) == [], "what kernels do, no operator shows"


def test_pictures_are_drawn_without_operators(tmp_path):
    made = record(lambda: None, [])
    write(tmp_path / "none.svg", [("none", made)])
    assert made.peak_bytes == 0


@pytest.mark.parametrize("name", TRACES)
def test_the_chapters_traces_are_what_the_code_gives_now(name):
    kept = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    assert kept == page(TRACES[name]()), "make them again: uv run python -m labstaff.traces"


def test_every_trace_is_linked_from_a_chapter():
    chapters = "".join(file.read_text(encoding="utf-8") for file in FOLDER.parents[1].glob("*.md"))
    assert {file.stem for file in FOLDER.glob("*")} == set(TRACES)
    assert all(f'<a href="_static/traces/{name}.html">' in chapters for name in TRACES)


def test_the_chapters_traces_give_no_solution_away():
    assert find_leaks(find_labs(), FOLDER.glob("*.html")) == []
