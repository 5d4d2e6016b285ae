"""The walls themselves: what code in the sandbox cannot do even when no rule keeps it from trying."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from labkit.labs.catalog import ROOT
from labstaff.judge import framing, messages
from labstaff.judge.confine import SCRATCH
from labstaff.judge.framing import CodecError
from labstaff.judge.packing import MOST_NODES, pack
from labstaff.judge.sandbox import BoxBroken, Sandbox, bubblewrap
from labstaff.judge.unpacking import unpacker_of
from tests.labstaff.judge.walls import GIVES, REFUSED, TRIES

REFUSALS = ("PermissionError", "OSError", "ProcessLookupError", "FileNotFoundError", "MemoryError", "ValueError")
unpack = unpacker_of(messages.FromAnswer)
unpack_request = unpacker_of(messages.FromSuite)


pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def box():
    with Sandbox(heavy=()) as box:
        yield box


class Inside:
    """A cell with code in it, called by name: the programs above, or an answer with a task `ordinary`."""

    def __init__(self, box, answer="", **bounds):
        self.cell = box.cell(**({"memory_bytes": 256 << 20, "cpu_seconds": 5} | bounds))
        self.loaded = self.ask(messages.Load("answer", "answer.py", answer, "tries.py", TRIES, ["ordinary"]))
        self.numbers = self.loaded.tasks | self.loaded.programs

    def ask(self, message):
        framing.send(self.cell.channel, *pack(message))
        return unpack(*framing.receive(self.cell.channel))

    def call(self, name, *args):
        return messages.Call(self.numbers[name], "", list(args), {}, False, "")

    def __call__(self, name, *args):
        reply = self.ask(self.call(name, *args))
        assert isinstance(reply, messages.Returned), reply
        return reply.result


@pytest.fixture
def inside(box):
    inside = Inside(box)
    yield inside
    inside.cell.end()


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(inside, what):
    assert inside("tried", what) in REFUSALS


@pytest.mark.parametrize(("what", "gives"), GIVES.items(), ids=list(GIVES))
def test_there_is_no_more_than_this(inside, what, gives):
    assert inside("tried", what) in (gives if isinstance(gives, tuple) else (gives,))


def test_nothing_of_the_environment_lies_where_a_cell_has_its_own_files(monkeypatch, tmp_path):
    """Packages are imported lazily too, when the cell's own view of files is in place."""
    monkeypatch.setattr("labstaff.judge.sandbox.sys.prefix", str(tmp_path))
    command = bubblewrap("namespaces")
    shown = [Path(target) for option, target in zip(command, command[2:], strict=False) if option == "--ro-bind"]
    assert tmp_path in shown
    assert not [path for path in shown if path.is_relative_to(SCRATCH)]


def test_a_cell_finds_nothing_of_another(box):
    first, second = Inside(box), Inside(box)
    assert first("tried", "leave_a_file") == "done"
    assert first("tried", "find_the_file") == "['left']"
    assert second("tried", "find_the_file") == "[]"
    first.cell.end()
    assert second("tried", "find_the_file") == "[]"
    second.cell.end()


def test_the_course_is_not_there(inside):
    for folder in ("labs", "solutions", "tests", "labkit", ".git"):
        assert inside("listed", str(ROOT / folder)) == "FileNotFoundError"
    assert inside("listed", os.path.expanduser("~/.ssh")) in ("FileNotFoundError", "PermissionError")


def test_nothing_outside_can_be_written(inside, tmp_path):
    assert inside("written", str(tmp_path / "x")) in ("FileNotFoundError", "PermissionError", "OSError")
    assert not (tmp_path / "x").exists()


def test_the_environment_is_not_handed_on(inside):
    known = {"PATH", "HOME", "TMPDIR", "LANG", "LOGNAME", "MPLCONFIGDIR", "MPLBACKEND", "PYTHONDONTWRITEBYTECODE"}
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    assert inside("environment") == repr(sorted(known | threads))


def test_a_process_that_ends_is_noticed_and_the_next_one_is_new(box):
    first = Inside(box)
    with pytest.raises(EOFError):
        first("ends")
    assert first.cell.last_words() == "it left with status 3"
    assert os.waitstatus_to_exitcode(first.cell.end().status) == 3
    second = Inside(box)
    assert second("tried", "one_thread") == "[1]"
    second.cell.end()


@pytest.mark.parametrize("n_bytes", [0, 3, 200_000])
def test_a_message_without_room_leaves_the_stream_in_order(n_bytes, monkeypatch):
    """A cell that is out of memory says so, and hears what comes next."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        buffers = [memoryview(bytes(n_bytes))] if n_bytes else []
        sending = threading.Thread(target=framing.send, args=(ours, b"too much", buffers))
        sending.start()
        monkeypatch.setattr(framing, "_pages", no_room)
        with pytest.raises(MemoryError):
            framing.receive(theirs)
        monkeypatch.undo()
        sending.join()
        framing.send(ours, b"next")
        assert bytes(framing.receive(theirs)[0]) == b"next"


def no_room(n_bytes):
    raise OSError(12, "Cannot allocate memory")


def test_what_never_ends_is_ended_from_outside(box):
    cell = Inside(box)
    framing.send(cell.cell.channel, *pack(cell.call("never_ends")))
    assert cell.cell.end().signal == signal.SIGKILL, "it ended by itself"


def test_who_uses_up_its_time_is_ended(box):
    cell = Inside(box, cpu_seconds=1)
    with pytest.raises(EOFError):
        cell("never_ends")
    assert cell.cell.last_words() == "its time was used up"


def test_a_broken_box_is_nobody_s_fault_but_the_judge_s():
    box = Sandbox()
    cell = Inside(box)
    os.killpg(box._server.process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        [cell("tried", "one_thread") for _ in range(100_000)]  # until the box is gone
    with pytest.raises(BoxBroken):
        cell.cell.last_words()
    with pytest.raises(BoxBroken):
        box.cell()
    box.close()


@pytest.mark.parametrize("what", ["too_many_parts", "too_much_text"])
def test_too_much_does_not_cross(inside, what):
    reply = inside.ask(inside.call(what))
    assert "too many parts, or too much text" in reply.error.said


def returned(tree, *buffers):
    """What an answer could send that has taken over its side of the codec."""
    return msgspec.msgpack.encode([[len(each) for each in buffers], ["Returned", tree, [], None, []]])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        returned([1, 2])[:-1],
        returned("x") + b"more",
        returned([None] * (MOST_NODES + 1)),
        returned({"$": "range", "items": [0, 1 << 62, 1]}),
        returned({"$": "int", "text": "9" * 5000}),
        returned({"$": "tuple"}),
        returned({"$": "nothing"}),
        returned({"$": "np", "name": "object_"}) + b"\0",
        returned({"no": "kind"}),
        msgspec.msgpack.encode([[], ["Nothing"]]),
        msgspec.msgpack.encode([[], ["Raised", [["kind"], 3, []], []]]),
    ],
)
def test_what_is_no_message_is_refused(head):
    with pytest.raises(CodecError):
        unpack(head, memoryview(b""))


def array(shape, strides, **more):
    return {
        "$": "array",
        "dtype": "<f8",
        "shape": shape,
        "strides": strides,
        "at": 0,
        "buffer": 0,
        "fixed": False,
    } | more


def tensor(shape, strides, **more):
    place = {"strides": strides, "at": 0, "device": "cpu", "buffer": 0, "grad": False}
    return {"$": "tensor", "dtype": "float32", "shape": shape} | place | more


@pytest.mark.parametrize(
    "tree",
    [
        array([100], [8]),
        array([8], [8], at=8),
        array([8], [-8]),
        array([1 << 40], [0]),
        array([1 << 20, 1 << 20], [0, 0]),
        array([-1], [8]),
        array([8], [8], buffer=1),
        array([8], [8], dtype="O"),
        array([1], [8], dtype="V8"),
        tensor([100], [1]),
        tensor([4], [-1]),
        tensor([1 << 40], [0]),
        tensor([1 << 14, 1 << 14], [0, 0]),
        tensor([4], [1], dtype="load"),
        tensor([4], [1], at=-1),
        tensor([4, 4], [1]),
    ],
)
def test_an_array_that_reaches_out_of_its_buffer_or_is_a_balloon_is_refused(tree):
    pytest.importorskip("torch")
    with pytest.raises(CodecError):
        unpack(returned(tree, bytes(64)), memoryview(bytearray(64)))


def test_values_cross_as_they_are():
    base = np.arange(24.0).reshape(4, 6)
    value = {
        "a": (1, 2.5, None, True, "√d", float("inf"), 1 << 80, 2j, float, range(3)),
        3: [base[::2, 1::2], base.T, np.float32(2), np.int64(3)],
        "s": slice(1, 9),
    }
    head, buffers = pack(messages.Backward(0, value))
    body = b"".join(bytes(each) + bytes(framing.padded(len(each)) - len(each)) for each in buffers)
    back = unpack_request(head, memoryview(bytearray(body))).grads
    assert back["a"] == value["a"]
    assert back["s"] == value["s"]
    for sent, got in zip(value[3], back[3], strict=True):
        assert type(sent) is type(got)
        assert np.array_equal(sent, got)
        assert np.asarray(sent).strides == np.asarray(got).strides


ORDINARY = """
import dataclasses
import functools
import math
from functools import wraps

import numpy as np


def twice(function):
    @wraps(function)
    def both(*args):
        return [function(*args), function(*args)]
    return both


class Counted:
    total = 0

    def __init__(self):
        self.loaded, self._content = 0, {}

    def __setattr__(self, name, value):
        super().__setattr__(name, value)

    def load(self, *, open=1):
        self.loaded += open
        Counted.total += 1
        setattr(self, "last", self.__class__.__name__)
        told = "inspect {0}, not sys: {1:.{width}f} of {2.real}"
        return told.format(self.last, math.pi, open, width=2)


@dataclasses.dataclass
class Pair:
    first: int
    second: int = 2


@twice
def ordinary(n):
    counted = Counted()
    said = counted.load()
    match n:
        case int(whole):
            said += f" {whole}"
    array = np.zeros(3)
    array.shape = (3, 1)
    function = functools.partial(max, n)
    ordinary.calls = function(3)
    del counted.last
    return said, counted.loaded, Counted.total > 0, array.shape, ordinary.calls, dataclasses.asdict(Pair(1))
"""


def test_ordinary_code_is_let_in(box):
    """What is guarded while it runs leaves usual Python as it is."""
    cell = Inside(box, ORDINARY)
    assert cell.loaded.said == "" and cell.loaded.raised is None
    once = ("inspect Counted, not sys: 3.14 of 1 4", 1, True, (3, 1), 4, {"first": 1, "second": 2})
    assert cell("ordinary", 4) == [once, once]
    cell.cell.end()
