"""A probe is sent with what it names, and nothing else of its suite."""

from __future__ import annotations

import importlib.util
import sys

import cloudpickle
import pytest

from labstaff.grader import wire

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
