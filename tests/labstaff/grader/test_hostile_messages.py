"""Every kind of message with hostile contents: the suite's side reads it or refuses it, within bounds."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from labstaff.grader import wire
from labstaff.grader.remote import _change

VALUES = [
    (1, 2.5, True, None, "text", b"bytes", 2**70, ...),
    {"a": [1, (2, 3)], 4: {5, 6}, "slice": slice(1, None, 2), "range": range(3)},
    [np.arange(6.0).reshape(2, 3), np.float32(2.5), np.array(["a", "b"]), np.dtype("int8"), 1j],
    [torch.arange(6).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16), torch.empty(3, 4, device="meta"), object()],
]
NOTHING = object()
HOSTILE = [
    *(NOTHING, True, -1, 0, 2**31, 2**63 - 1, -(2**63), float("nan"), float("inf")),
    *("", "\0", "x" * 100_000, "numpy", "torch", "__class__", "ndarray", "O", "O8", "V8", "M8[ns]", "<f8", "bfloat16"),
    *("array", "tensor", "meta", "opaque", "range", "dict", "set", "Returned", "Raised", "os", "labstaff.grader.wire"),
    *([], {}, [[]], [-1], [2**40], [2**62, 2**62], [0, 2**62], [2**31, 0], [10**6] * 30),
    *(["array", "<f8", [0, 2**40]], ["array", "|O", [1]], ["array", "<f8", [-1]], ["number", "<U1000000000", []]),
    *(["meta", "float32", [2**62], False], ["tensor", "Tensor", [1], True], ["tensor", "float32", [0, 2**40], True]),
    *(["range", [0, 2**62, 1]], ["range", ["a", 1, 1]], ["slice", [1]], ["integer", "9" * 5000], ["integer", "x"]),
    *(["opaque", "x" * 10_000], ["numpy", "savetxt"], ["dtype", "O"], ["dtype", "f8,f8"], ["dtype", "(9,9)f8"]),
    *(["handle", 1, "x"], ["kept", 0], ["exec", "raise SystemExit"], ["dict", [[["list", []], 1]]], ["dict", [1]]),
    *(["set", [["integer", str(n * (2**61 - 1))] for n in range(20_000)]], [["opaque", "x"]] * 5000),
    *(["array", "|S0", [2**62]], ["number", "<U0", []], ["tensor", "float32", [1] * 1000, False], {1: {2: 3}}),
    *(wire.msgspec.msgpack.Ext(5, b"x"), wire.msgspec.msgpack.Ext(-1, bytes(4)), b"x" * 1000),
]


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    tree: Any = []
    for _ in range(levels):
        tree = ["list", [tree]]
    return tree


def places_in(tree: Any) -> list[tuple[list[Any], int]]:
    """Every place in a message that something else may take."""
    found = [(tree, n) for n in range(len(tree))]
    return found + [place for part in tree if isinstance(part, list) for place in places_in(part)]


def messages() -> list[tuple[bytes, list[memoryview]]]:
    """One of each type, with every kind of value."""
    returned = [wire.for_suite(wire.Returned(value, [value])) for value in VALUES]
    return [*returned, wire.for_suite(wire.Raised(["builtins:ValueError"], "text", [("file.py", 3, "f")]))]


def hostile_messages() -> list[tuple[bytes, list[memoryview]]]:
    """Each message with each of its parts replaced by each hostile value; and, at random, with several."""
    found, rng = [], random.Random(38)

    def add(head: bytes, buffers: list[memoryview], replaced: dict[int, Any]) -> None:
        tree = wire.msgspec.msgpack.decode(head)
        for (part, at), value in zip(places_in(tree), map(replaced.get, range(10**6)), strict=False):
            if value is not None:
                part[at] = None if value is NOTHING else value
        cut = [memoryview(bytes(rng.choice((len(each), 0, 3)))) for each in buffers]
        found.append((wire.msgspec.msgpack.encode(tree), rng.choice((buffers, cut, []))))

    for head, buffers in messages():
        n_places = len(places_in(wire.msgspec.msgpack.decode(head)))
        for place in range(n_places):
            for value in (*HOSTILE, deep(150)):
                add(head, buffers, {place: value})
        for _ in range(500):
            add(head, buffers, {rng.randrange(n_places): rng.choice(HOSTILE) for _ in range(3)})
    return found


def read(head: bytes, buffers: list[memoryview]) -> None:
    """As the suite's side does; only a WireError may come of it."""
    with contextlib.suppress(wire.WireError):
        message = wire.from_worker(memoryview(head), buffers)
        if isinstance(message, wire.Returned) and message.arguments is not None:
            _change([np.zeros((2, 3)), torch.zeros(2, 3)], message.arguments)


@pytest.mark.slow
def test_every_part_replaced_by_what_it_should_not_be():
    """In a process that may take 1 GiB and 2 seconds of CPU more for each message."""
    sent = hostile_messages()
    assert len(sent) > 5_000
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open("/proc/self/status", encoding="ascii") as file:
                data = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))
            resource.setrlimit(resource.RLIMIT_DATA, (data + (1 << 30),) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
            for head, buffers in sent:
                start = time.process_time()
                read(head, buffers)
                assert time.process_time() - start < 2, head[:200]
            status = 0
        except BaseException as error:
            print(type(error).__name__, str(error)[:500], head[:300], file=sys.stderr, flush=True)
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("name", ["kinds", "message", "places"])
def test_an_exception_is_bounded(name):
    fields = {"kinds": ["ValueError"], "message": "text", "places": [("file.py", 1, "f")]}
    for times in (10, 10_000):
        head = wire.msgspec.msgpack.encode(["Raised", *(fields | {name: fields[name] * times}).values()])
        if times == 10 and name != "kinds":
            assert wire.from_worker(memoryview(head), [])
        else:
            with pytest.raises(wire.WireError):
                wire.from_worker(memoryview(head), [])
