"""The source review lists forgeries, no solutions, and few ordinary styles."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from labkit.labs.catalog import find_lab, find_labs, solution_file
from labkit.suite.review import ALLOWANCES, LIBRARIES, TOO_DEEP, Finding, findings, review
from labstaff.authoring.alternatives import alternative_solutions
from labstaff.authoring.mistakes import mistakes_of
from labstaff.derive.allowances import derive_allowances
from labstaff.pytest_plugin import variant_text
from tests.labkit.suite.forgeries import FORGERIES
from tests.labkit.suite.honest_styles import HONEST

MAX_STYLES_LISTED = 4
MAX_MISTAKES_LISTED = 4


def of(source: str, number: str = "01") -> list[str]:
    return [found.what for found in review(source, find_lab(number))]


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number, each in FORGERIES.items() for name in each], ids=lambda name: name
)
def test_forgeries_are_listed(number: str, name: str) -> None:
    assert review(FORGERIES[number][name], find_lab(number))


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_solutions_and_alternative_solutions_are_not_listed(lab) -> None:
    texts = {solution_file(lab): solution_file(lab).read_text(encoding="utf-8")}
    texts |= {file: variant_text(lab, file) for file in alternative_solutions(lab)}
    assert not {file.stem: found for file, text in texts.items() if (found := review(text, lab))}


def test_stubs_are_not_listed() -> None:
    for lab in find_labs():
        assert review(lab.student_file.read_text(encoding="utf-8"), lab) == []


def test_few_ordinary_styles_are_listed() -> None:
    listed = {name: found for (number, name), text in HONEST.items() if (found := of(text, number))}
    for name, found in listed.items():
        print(f"{name}: {'; '.join(found)}")
    print(f"{len(listed)} of {len(HONEST)} listed")
    assert len(HONEST) >= 82
    assert len(listed) <= MAX_STYLES_LISTED


@pytest.mark.slow
def test_few_mistakes_are_listed() -> None:
    mistakes = [(lab, mistake) for lab in find_labs() for mistake in mistakes_of(lab)[::12]]
    listed = [found for lab, mistake in mistakes if (found := review(mistake.source(), lab))]
    for what, count in Counter(what for found in listed for what in {each.what for each in found}).most_common():
        print(f"{count} × {what}")
    print(f"{len(listed)} of {len(mistakes)} listed")
    assert len(listed) <= MAX_MISTAKES_LISTED


def test_allowances_are_fresh() -> None:
    assert ALLOWANCES.read_text(encoding="utf-8") == derive_allowances(), "uv run lab build"


def test_what_a_lab_allows_is_a_finding_in_another() -> None:
    assert of("import torch", "05") == []
    assert of("import torch", "01") == ["imports torch"]


def test_packages_that_may_be_missing_are_a_finding() -> None:
    assert all(map(importlib.util.find_spec, LIBRARIES))
    assert of("import pandas") == ["imports pandas, which may be missing where it is graded"]


def test_tqdm_is_ordinary_and_its_threads_are_not() -> None:
    assert of("from tqdm import tqdm, trange") == []
    threads = (
        "from tqdm import TMonitor",
        "from tqdm import *",
        "import tqdm\ntqdm.TMonitor",
        "import tqdm.contrib.concurrent",
    )
    assert all(map(of, (*threads, "from tqdm.contrib.concurrent import thread_map", "from tqdm.std import TMonitor")))


def test_a_flag_of_torchs_may_be_read_and_not_set() -> None:
    flag = "import torch\ntorch.autograd.profiler._is_profiler_enabled"
    assert (of(flag, "05"), of(f"{flag} = False", "05")) == (
        [],
        ["changes torch.autograd.profiler._is_profiler_enabled"],
    )


ATTEND = "import torch\nattend = torch.nn.functional.scaled_dot_product_attention\n"


@pytest.mark.parametrize(
    ("code", "tasks"),
    [
        ("def flash_backward(Q): attend(Q, Q, Q)", ["flash_backward"]),
        ("def helper(Q): attend(Q, Q, Q)\ndef flash_backward(Q): helper(Q)", ["flash_backward"]),
        ("def check(Q): attend(Q, Q, Q)\ndef flash_backward(Q): return Q", []),
        ("if attend: pass", ["flash_forward", "flash_backward", "FlashAttention"]),
    ],
    ids=["directly", "by a helper", "not at all", "at the top"],
)
def test_a_librarys_attention_is_a_finding_of_the_tasks_that_use_it(code: str, tasks: list[str]) -> None:
    found = review(ATTEND + code, find_lab("05"))
    assert {task for each in found for task in each.tasks} == set(tasks)
    assert all(each.what.endswith("uses a library's own attention (scaled_dot_product_attention)") for each in found)


def test_lab_08_may_measure_a_librarys_attention_and_not_hand_it_in() -> None:
    code = f"{ATTEND}def memory_breakdown(): attend()\n"
    assert of(code, "08") == []
    assert set(of(f"{code}def sliding_window_attention(): attend()\n", "08")) == {
        "sliding_window_attention uses a library's own attention (scaled_dot_product_attention)"
    }


@pytest.mark.parametrize("source", ["x = a" + ".b" * 20_000, "x = " + "-" * 20_000 + "1", "(" * 5000])
def test_a_text_that_is_nested_too_deep_is_a_finding(source: str) -> None:
    assert of(source) in ([TOO_DEEP], [])


@pytest.mark.parametrize("source", ["def f(:", "\0", "", "\ufeffimport math\r\nx = math.pi\r\n"])
def test_other_texts_are_reported_by_the_tests(source: str) -> None:
    assert of(source) == []


def test_findings_come_in_the_order_of_the_lines() -> None:
    source = "import ctypes\n\nx = eval('1')\nimport mmap\n"
    assert findings(source, find_lab("01")) == [
        Finding(1, "imports ctypes"),
        Finding(3, "uses eval"),
        Finding(4, "imports mmap"),
    ]
