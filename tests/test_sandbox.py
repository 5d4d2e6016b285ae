"""The walls themselves: what code in the sandbox cannot do even when no policy keeps it from trying."""

from __future__ import annotations

import ast
import json
import os
import struct

import pytest

from labkit.labs.catalog import ROOT
from labstaff.judge import codec, policy
from labstaff.judge.sandbox import Sandbox

TRIES = '''
import os, signal, socket, subprocess, threading

def told(what, *args):
    """How a try went: the result, or the name of the exception."""
    try:
        return repr(globals()["try_" + what](*args))
    except BaseException as error:
        return type(error).__name__

def try_fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "forked"

def try_program():
    return subprocess.run(["/usr/bin/true"]).returncode

def try_exec():
    os.execv("/usr/bin/true", ["true"])

def try_socket():
    return socket.socket()

def try_signal():
    return os.kill(os.getppid(), signal.SIGKILL)

def try_thread():
    seen = []
    thread = threading.Thread(target=seen.append, args=(1,))
    thread.start()
    thread.join()
    return seen

def try_list(path):
    return os.listdir(path)

def try_write(path):
    with open(path, "w") as file:
        file.write("x")
    return "written"

def try_large_file():
    with open("/tmp/large", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    return "written"

def try_memory():
    return len(bytearray(600 << 20))

def try_more_memory():
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))

def try_read_parent():
    return os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR)

def try_environment():
    return sorted(set(os.environ) - {"LC_CTYPE", "PWD"})

def ends():
    os._exit(3)

def never_ends():
    while True:
        pass

def too_many_parts():
    return [None] * 1_000_000

def too_much_text():
    return "x" * (5 << 20)
'''


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(heavy=()) as sandbox:
        yield sandbox


class Inside:
    """A cell with code in it, called by name: the steps above, or an answer with a task `ordinary`."""

    def __init__(self, sandbox, answer=None):
        self.cell = sandbox.cell(memory_bytes=256 << 20, cpu_seconds=5)
        code = {"sources": [("answer.py", answer)], "programs": ""} if answer else {"sources": [], "programs": TRIES}
        self.loaded = self.ask("load", module="answer", suite="tries.py", tasks=["ordinary"], **code)["ok"]
        self.numbers = self.loaded["tasks"] | self.loaded["programs"]

    def ask(self, deed, **arguments):
        codec.send(self.cell.channel, codec.pack({"do": deed, "with": arguments}))
        return codec.unpack(codec.receive(self.cell.channel))

    def __call__(self, name, *args):
        plain = {"method": "", "args": list(args), "kwargs": {}, "grad": False, "meter": ""}
        return self.ask("call", number=self.numbers[name], **plain)["ok"]["result"]


@pytest.fixture
def inside(sandbox):
    inside = Inside(sandbox)
    yield inside
    inside.cell.close()


@pytest.mark.parametrize("what", ["fork", "program", "exec", "socket", "signal"])
def test_no_processes_programs_sockets_signals(inside, what):
    assert inside("told", what) == "PermissionError"


def test_threads_may_run(inside):
    assert inside("told", "thread") == "[1]"


def test_the_course_is_not_there(inside):
    for folder in ("labs", "solutions", "tests", "labkit", ".git"):
        assert inside("told", "list", str(ROOT / folder)) == "FileNotFoundError"
    assert inside("told", "list", os.path.expanduser("~/.ssh")) in ("FileNotFoundError", "PermissionError")


def test_nothing_outside_can_be_written(inside, tmp_path):
    assert inside("told", "write", "/usr/x") == "OSError"  # read-only
    assert inside("told", "write", str(tmp_path / "x")) != "'written'"
    assert not (tmp_path / "x").exists()


def test_files_and_memory_are_bounded(inside):
    assert inside("told", "large_file") != "'written'"
    assert inside("told", "memory") == "MemoryError"
    assert inside("told", "more_memory") in ("PermissionError", "ValueError")


def test_the_parent_s_memory_is_its_own(inside):
    assert inside("told", "read_parent") in ("PermissionError", "FileNotFoundError")


def test_the_environment_is_not_handed_on(inside, monkeypatch):
    known = {"PATH", "HOME", "LANG", "MPLCONFIGDIR", "MPLBACKEND", "PYTHONDONTWRITEBYTECODE"}
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    assert inside("told", "environment") == repr(sorted(known | threads))


def test_a_process_that_ends_is_noticed_and_the_next_one_is_new(sandbox):
    first = Inside(sandbox)
    with pytest.raises(EOFError):
        first("ends")
    first.cell.close()
    assert os.waitstatus_to_exitcode(first.cell.status) == 3
    second = Inside(sandbox)
    assert second("told", "thread") == "[1]"
    second.cell.close()


def test_what_never_ends_is_ended_from_outside(sandbox):
    cell = Inside(sandbox)
    plain = {"method": "", "args": [], "kwargs": {}, "grad": False, "meter": ""}
    request = {"do": "call", "with": {"number": cell.numbers["never_ends"], **plain}}
    codec.send(cell.cell.channel, codec.pack(request))
    cell.cell.close()
    assert os.WIFSIGNALED(cell.cell.status), "it ended by itself"


@pytest.mark.parametrize("what", ["too_many_parts", "too_much_text"])
def test_too_much_does_not_cross(inside, what):
    reply = inside.ask("call", number=inside.numbers[what], method="", args=[], kwargs={}, grad=False, meter="")
    assert "too many parts, or too much text" in reply["error"]["said"]


def message(tree, buffer=b""):
    """What an answer could send that has taken over its side of the codec."""
    head, body = json.dumps([len(buffer)]).encode(), json.dumps(tree).encode()
    return struct.pack("<I", len(head)) + head + struct.pack("<I", len(body)) + body + buffer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        codec.pack([1, 2])[:-1],
        codec.pack("x") + b"more",
        message([None] * (codec.MOST_NODES + 1)),
        message("x" * codec.MOST_TEXT),
    ],
    ids=["empty", "zeros", "ones", "cut", "longer", "too_many_parts", "too_much_text"],
)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(codec.CodecError):
        codec.unpack(body)


def test_an_array_that_reaches_out_of_its_buffer_is_refused():
    tree = {"$": "array", "dtype": "<f8", "shape": [100], "strides": [8], "at": 0, "buffer": 0, "fixed": False}
    with pytest.raises(codec.CodecError):
        codec.unpack(message(tree, bytes(8)))


def test_values_cross_as_they_are():
    import numpy as np

    base = np.arange(24.0).reshape(4, 6)
    value = {
        "a": (1, 2.5, None, True, "√d"),
        3: [base[::2, 1::2], base.T, np.float32(2), np.int64(3)],
        "s": slice(1, 9),
    }
    back = codec.unpack(codec.pack(value))
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


def test_ordinary_code_is_let_in(sandbox):
    """What the policy closes, and what is guarded while it runs, leaves usual Python as it is."""
    assert policy.breaches(ast.parse(ORDINARY)) == []
    cell = Inside(sandbox, ORDINARY)
    assert cell.loaded["problem"] is None
    once = ("inspect Counted, not sys: 3.14 of 1 4", 1, True, (3, 1), 4, {"first": 1, "second": 2})
    assert cell("ordinary", 4) == [once, once]
    cell.cell.close()
