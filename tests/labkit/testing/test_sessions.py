"""Sessions: calls of an object, each made on a new one, and records of a block manager's calls."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import numpy as np
import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.meters.blocks import RANDOM_SIZES, random_operations, record_random_operations
from labkit.meters.sessions import run_calls
from labkit.testing.decoding.managed import Managed
from labkit.testing.sessions import Session


class Stack:
    """A list that refuses numbers below 0, after it has added them."""

    def __init__(self):
        self.items = []

    def push(self, items):
        self.items += items
        items.append("mine")
        if items[0] < 0:
            raise ValueError("below 0")
        return self.items

    def size(self):
        return len(self.items)


def new_session(record=()):
    return Session(lambda calls: run_calls(Stack(), calls), record)


def test_calls_are_made_again_and_refused_ones_too():
    stack = new_session()
    given = [1, 2]
    assert stack.push(given) == [1, 2]
    assert given == [1, 2]  # no argument is shared with the object
    given.append(3)
    with pytest.raises(ValueError, match="below 0"):
        stack.push([-1])
    assert stack.size() == 3


def test_an_exception_that_is_new_passes():
    calls = [("push", ([-1],), False), ("size", (), False)]
    with pytest.raises(ValueError, match="below 0"):
        run_calls(Stack(), calls)


def test_a_record_is_used_as_far_as_it_goes():
    stack = new_session([("push", "recorded", None), ("push", None, "refused"), ("size", 7, None)])
    assert stack.push([1]) == "recorded"
    with pytest.raises(RuntimeError, match="refused"):
        stack.push([2])
    assert stack.push([3]) == [1, 2, 3]  # another method than the record's: all is run
    assert stack.size() == 3


def manager_class():
    module, file = ModuleType("decoding"), solution_file(find_lab("09"))
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module.BlockManager


def never(num_blocks, block_size, calls):
    raise LookupError(f"{calls[-1][0]}, call {len(calls)}, is not in the record")


@pytest.mark.parametrize("seed", range(4))
def test_the_record_of_a_manager_holds_all_calls(seed):
    record = record_random_operations(manager_class(), seed)
    managed = Managed(never, *RANDOM_SIZES, record)
    random_operations(managed, np.random.default_rng(seed))
    assert any(refusal for _, _, refusal in record)
    assert len(managed.manager._calls) == len(record)


def test_the_record_of_a_manager_ends_before_what_raises():
    class Lost(manager_class()):
        def free(self, seq_id):
            raise LookupError("free")

    def run(num_blocks, block_size, calls):
        return run_calls(Lost(num_blocks, block_size), calls)

    managed = Managed(run, *RANDOM_SIZES, record_random_operations(Lost, 0))
    with pytest.raises(LookupError, match="free"):
        random_operations(managed, np.random.default_rng(0))
    with pytest.raises(LookupError, match="allocate"):
        Session(partial(never, 1, 1)).allocate(1, [1])
