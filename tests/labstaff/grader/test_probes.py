"""A probe is sent with what it names: its meters too, and nothing else of its suite."""

from __future__ import annotations

import importlib
import importlib.util
import io
import pkgutil
import sys

import cloudpickle
import pytest

import labkit.meters
from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.results import Kind
from labstaff.grader import wire
from labstaff.grader.remote import MEASURING
from labstaff.grader.runner import SandboxedRunner

SUITE = """
SECRET = "expected " + "value"
SIZES = {"small": 3}

def helper(x):
    return 2 * x

def probe(name):
    return helper(SIZES[name])

class TestIt:
    def test_it(self):
        assert probe("small") == SECRET
"""


@pytest.fixture
def suite(tmp_path):
    file = tmp_path / "suite_of_probes.py"
    file.write_text(SUITE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[file.stem]


def test_it_carries_what_it_names_alone(suite):
    head, *_ = wire.for_worker(("call", suite.probe))
    assert b"SIZES" in head and b"helper" in head
    assert b"SECRET" not in head and b"expected value" not in head and b"TestIt" not in head


def test_it_runs_without_its_suite(suite):
    head, *_ = wire.for_worker(suite.probe)
    del sys.modules[suite.__name__]
    function, _ = wire.from_suite(head, [])
    sys.modules[suite.__name__] = suite
    assert function("small") == 6


MODULES = (
    *(f"labkit.meters.{name}" for _, name, is_folder in pkgutil.iter_modules(labkit.meters.__path__) if not is_folder),
    *(f"labkit.meters.kernels.{name}" for name in ("adapter", "calls", "compiled", "watch")),
    *("labkit.ranks.measure", "labkit.serving.records"),
)
BY_NAME = ("labkit.suite.limits", "labstaff.grader.wire")


@pytest.fixture
def by_value():
    for package in MEASURING:
        cloudpickle.register_pickle_by_value(package)
    yield
    for package in MEASURING:
        cloudpickle.unregister_pickle_by_value(package)


class Names(wire.Unpickler):
    """Keeps the modules in which it finds something by name."""

    def __init__(self, head):
        super().__init__(io.BytesIO(head))
        self.modules = set()

    def find_class(self, module, name):
        self.modules.add(module)
        return super().find_class(module, name)


@pytest.mark.parametrize("name", MODULES)
def test_a_meter_is_sent_and_not_found_by_name(by_value, name):
    module = importlib.import_module(name)
    public = [value for key, value in vars(module).items() if key[0] != "_" and value.__class__ is not type(module)]
    own = [value for value in public if callable(value) and getattr(value, "__module__", "") == name]
    assert own
    names = Names(wire.for_worker(own).head)
    names.load()
    assert not {each for each in names.modules if each.startswith("lab") and each not in BY_NAME}


def test_a_meter_is_new_in_each_message(by_value):
    from labkit.meters.allocation import AllocationMeter

    heads = [wire.for_worker(AllocationMeter).head for _ in range(2)]
    wire.by_value._DYNAMIC_CLASS_TRACKER_BY_ID.clear()  # as in another process
    first, _ = wire.from_suite(heads[0], [])
    first.__new__ = None
    second, _ = wire.from_suite(heads[1], [])
    assert second()


REPLACED = """
import importlib, sys
import torch
allocation, products, calls, tensors = (
    importlib.import_module(f"labkit.meters.{name}") for name in ("allocation", "products", "calls", "tensors")
)
allocation.AllocationMeter.peak_bytes = allocation.AllocationMeter.largest_bytes = property(lambda self: 0)
products.ProductMeter._see = lambda self, func, args, kwargs: func(*args, **kwargs)
for module in (calls, tensors):
    module.AllocationMeter = allocation.AllocationMeter
writer = importlib.import_module("labstaff.grader.wire").Writer
value = writer.value
writer.value = lambda self, x: value(self, 0 if type(x) is int and x > 1 << 20 else x)
"""
COST_TESTS = ("TestFlashForward::test_memory_grows_with_n_only", "TestFlashForward::test_memory_of_blocks")
WHOLE_MATRIX = """
_tiled = flash_forward
def flash_forward(Q, K, V, *rest, **options):
    S = torch.empty(*Q.shape[:-1], K.shape[-2])
    return _tiled(Q, K, V, *rest, **options)
"""


@pytest.mark.slow
@pytest.mark.sandbox
def test_replaced_meters_change_no_result(tmp_path):
    """Nor does a replaced writer of what they found: both are imported and changed by the submission."""
    lab, found = find_lab("05"), {}
    solution = solution_file(lab).read_text(encoding="utf-8")
    with SandboxedRunner() as runner:
        for replaced in ("", REPLACED):
            (tmp_path / f"{lab.module}.py").write_text(solution + replaced + WHOLE_MATRIX, encoding="utf-8")
            run = runner.run(lab.label, "--src", str(tmp_path), tests=COST_TESTS)
            found[replaced] = [
                (result.test, result.kind, result.failure) for result in run.results if not result.passed
            ]
    assert len([kind for _, kind, _ in found[""] if kind is Kind.COST]) > 1, run
    assert found[REPLACED] == found[""]
