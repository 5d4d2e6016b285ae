"""Attacks by a submission's code: each one fails in the sandbox and succeeds in a process of its own without it."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.suite.finder import MAX_BYTES, Source, Unusable
from labkit.suite.limits import TookTooLong, time_limit
from labstaff.grader import wire
from labstaff.grader.confine import MEMORY_BYTES, confine
from labstaff.grader.grade import graded_run
from labstaff.grader.remote import ForgedReply, RemoteFunction, SubmissionError, SubmissionProcess
from labstaff.grader.runner import SandboxedRunner
from labstaff.grader.sandbox import Sandbox
from labstaff.grader.submission import read_submission

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

LAB = find_lab("03")
TASK = LAB.tasks[0].name
ATTACKS = {
    "read a file of the host": "open('/etc/passwd').read()",
    "list the course": f"import os; os.listdir({str(ROOT / 'labs')!r})",
    "write outside": "open('/var/tmp/attack', 'w').close(); import os; os.unlink('/var/tmp/attack')",
    "reach the network": "import socket; socket.create_connection(('127.0.0.1', PORT), 5).close()",
    "start a process": "import os; pid = os.fork(); pid or os._exit(0); os.waitpid(pid, 0)",
    "start a program": "import subprocess; subprocess.run(['true'], check=True)",
    "signal another process": "import os; os.kill(os.getppid(), 0)",
    "signal a thread of another process": """
        import ctypes, os
        assert ctypes.CDLL(None).tgkill(os.getppid(), os.getppid(), 0) == 0
        """,
    "hold on to another process": "import os; os.close(os.pidfd_open(os.getppid()))",
    "read another process's limits": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "raise its own limit": "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (96, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
    "make memory read-only without end": f"""
        import ctypes, mmap
        mprotect, blocks = ctypes.CDLL(None).mprotect, []
        for _ in range({(MEMORY_BYTES >> 28) + 1}):
            block = mmap.mmap(-1, 1 << 28, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            start = ctypes.addressof(ctypes.c_char.from_buffer(block))
            assert mprotect(ctypes.c_void_p(start), ctypes.c_size_t(1 << 28), mmap.PROT_READ) == 0
            blocks.append(block)
        """,
    "share memory": "import mmap; mmap.mmap(-1, 1 << 20).close()",
    "make a file in memory": "import os; os.close(os.memfd_create('x'))",
    "make a pipe": "import os; [os.close(end) for end in os.pipe()]",
    "read settings of the kernel": "open('/proc/sys/kernel/osrelease').read()",
    "map without end": """
        import mmap
        mmap.mmap(-1, 1 << 37, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
        """,
    "read devices of the machine": "import os; assert os.listdir('/sys')",
    "make a namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "allocate without end": f"import numpy; numpy.empty({MEMORY_BYTES + (64 << 20)}, 'u1')",
    "start threads without end": """
        import threading
        event = threading.Event()
        threads = [threading.Thread(target=event.wait, daemon=True) for _ in range(1000)]
        try:
            [thread.start() for thread in threads]
        finally:
            event.set()
        """,
    "make a file": "open('file', 'w').close(); import os; os.unlink('file')",
    "make a folder": "import os; os.mkdir('folder'); os.rmdir('folder')",
    "make a link": "import os; os.symlink('/', 'link'); os.unlink('link')",
    "change its folder": "import os; os.chmod('.', 0o700)",
    "lock a file": "import fcntl; fcntl.lockf(open('/dev/zero', 'w+b', 0), fcntl.LOCK_EX)",
    "bind a name": "import socket; socket.socket(socket.AF_UNIX).bind('\\0name')",
    "share a segment": """
        import ctypes
        libc = ctypes.CDLL(None)
        segment = libc.shmget(0, 4096, 0o1600)
        assert segment >= 0 and libc.shmctl(segment, 0, None) == 0
        """,
    "queue messages": """
        import ctypes
        libc = ctypes.CDLL(None)
        queue = libc.msgget(0, 0o1600)
        assert queue >= 0 and libc.msgctl(queue, 0, None) == 0
        """,
}
"""Statements that raise where they do not succeed."""


@pytest.fixture(scope="module", params=[True, False], ids=["as root", "as a user"])
def sandbox(request):
    """Where the grader is not root, the two are the same."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr("labstaff.grader.sandbox.may_change_user", lambda: False)
        with Sandbox() as sandbox:
            yield sandbox


@pytest.fixture
def submitted(sandbox, tmp_path):
    """A function that gives a remote function for the task of a submission with this text."""
    remotes = []

    def submit(text: str) -> RemoteFunction:
        file = tmp_path / f"{LAB.module}.py"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        remotes.append(SubmissionProcess(sandbox, Source(LAB, file)))
        return RemoteFunction(remotes[-1], TASK)

    yield submit
    for remote in remotes:
        remote.end()


def task(body: str) -> str:
    """The text of a submission whose task has this body."""
    return f"def {TASK}(*args):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("attack", ATTACKS)
def test_fails_in_the_sandbox_alone(submitted, port, attack, tmp_path):
    body = ATTACKS[attack].replace("PORT", str(port))
    with pytest.raises((OSError, MemoryError, RuntimeError, AssertionError, ValueError)):
        submitted(task(body))()

    plain = [sys.executable, "-c", textwrap.dedent(body)]
    without = subprocess.run(plain, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert without.returncode == 0, without.stderr


ORDINARY = {
    "its own folder": "import os; os.chdir(os.path.dirname(os.path.abspath(__file__))); return len(os.listdir())",
    "its own text": "return 'return' in open(__file__).read()",
    "the null device": "import os; return open(os.devnull, 'w').write('1')",
    "plots": "import matplotlib.pyplot as plt; plt.plot([1, 2]); return len(plt.gca().lines)",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join(); return 1",
    "prints": "print('x' * 1_000_000); return 1",
    "no input": "import sys; return 1 + len(sys.stdin.read())",
}


@pytest.mark.parametrize("body", ORDINARY.values(), ids=list(ORDINARY))
def test_what_ordinary_code_does_works(submitted, body):
    assert submitted(task(body.replace("; return", "\nreturn")))() == 1


ENDLESS = "while True: pass"
DEAF = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"


@pytest.mark.parametrize("body", [ENDLESS, DEAF, "import time; time.sleep(1000)"], ids=["endless", "deaf", "sleeping"])
def test_what_does_not_end_is_stopped(submitted, monkeypatch, body):
    monkeypatch.setattr("labstaff.grader.remote.STOP_SECONDS", 1.0)
    attack = submitted(task(body))
    with pytest.raises((TookTooLong, SubmissionError)), time_limit(1, 3):
        attack()
    assert submitted(task("return 1"))() == 1


def test_an_import_that_waits_is_tried_once(submitted, monkeypatch):
    monkeypatch.setattr("labstaff.grader.remote.LOAD_SECONDS", 2.0)
    function = submitted("import time; time.sleep(1000)\n" + task("return 1"))
    for _ in range(2):
        with pytest.raises(Unusable, match=r"importing .* was not done after 2 s"), time_limit(60, 1):
            function()
    assert function.__dict__["_remote"].n_starts == 1


def test_a_workers_start_is_not_the_tests_time(submitted):
    with time_limit(60, 1):
        assert submitted("import time; time.sleep(2)\n" + task("return 1"))() == 1


GARBAGE = """
    import os
    for file in range(3, 20):
        try:
            os.write(file, BYTES)
        except OSError:
            pass
    """
REPLY = wire.HEADER.pack(wire.READY, 13, 0) + wire.msgspec.msgpack.encode(["Returned", 1, None])
FRAMES = """
import sys
frame = sys._getframe()
while "wire" not in frame.f_globals:
    frame = frame.f_back
"""
"""To the worker's own code, which no import finds."""
LIE = FRAMES + "frame.f_globals['wire'].Writer.value = lambda self, x: self.buffers.append(bytes(8)) or {}\n"
FORGED_REPLIES = {
    "garbage": task(GARBAGE.replace("BYTES", "bytes(range(256)) * 16")),
    "before a request": GARBAGE.replace("BYTES", repr(REPLY)).replace("\n    ", "\n") + task("return 1"),
    "in place of the reply": task(GARBAGE.replace("BYTES", repr(REPLY))),
}


@pytest.mark.parametrize("text", FORGED_REPLIES.values(), ids=list(FORGED_REPLIES))
def test_what_answers_no_request_ends_the_run(submitted, text):
    with pytest.raises(ForgedReply, match="past the worker"):
        submitted(text)()


def test_two_replies_to_one_request_end_the_run(submitted):
    """Where a submission has found the request's number: its own reply counts, and the worker's comes after it."""
    forge = (
        FRAMES
        + """
while "number" not in frame.f_locals:
    frame = frame.f_back
wire = frame.f_globals["wire"]
wire.send(frame.f_locals["self"].channel, frame.f_locals["number"], *wire.for_suite(wire.Returned(2)))
return 1
"""
    )
    attack = submitted(task(forge))
    assert attack() == 2
    with pytest.raises(ForgedReply):
        attack()


def test_a_forged_reply_earns_nothing_and_is_flagged(tmp_path):
    """Graded whole, although the rest of the submission is right."""
    text = solution_file(LAB).read_text(encoding="utf-8")
    forged = f"{text}\n_right = {TASK}\ndef {TASK}(*a, **k):\n    return _right(*a, **k)\n"
    forge = textwrap.indent(textwrap.dedent(GARBAGE.replace("BYTES", repr(REPLY))), "    ")
    forged = forged.replace("    return _right", f"{forge}\n    return _right")
    (tmp_path / f"{LAB.module}.py").write_text(forged, encoding="utf-8")
    with SandboxedRunner(()) as runner:
        run = runner.run(LAB.label, "--src", str(tmp_path), tests=tuple(each.tests for each in LAB.tasks[:2]))
    graded = graded_run(LAB, "", run)
    assert set(graded.shares.values()) == {0.0}
    assert any("a reply that nobody had asked for" in flag for flag in graded.flags)


UNUSABLE = {
    "an array larger than its buffer": LIE.format(["array", "<f8", [9]]) + "return 1",
    "an array of no buffer": LIE.format([["array", "<f8", [1]]] * 2) + "return 1",
    "an array of a negative size": LIE.format(["array", "<f8", [-1, -1]]) + "return 1",
    "an array of objects": LIE.format(["array", "|O", [1]]) + "return 1",
    "a handle of no kind": LIE.format(["handle", 1, "x"]) + "return 1",
    "an empty array of 200 million rows": "import numpy\nreturn numpy.empty((200_000_000, 0))",
    "a function of NumPy": LIE.format(["numpy", "savetxt"]) + "return 1",
    "a dtype of objects": LIE.format(["dtype", "O"]) + "return 1",
    "fifty thousand classes": LIE.format(["list", [["opaque", "x"]] * 50_000]) + "return 1",
    "a value of no kind": LIE.format(["exec", "raise SystemExit"]) + "return 1",
    "ten million numbers": "return [0] * 10_000_000",
    "one number expanded to 2³⁸ bytes": "import numpy\nreturn numpy.broadcast_to(1.0, (1 << 35,))",
    "a list nested too deep": "x = []\nfor _ in range(500): x = [x]\nreturn x",
    "a list that contains itself": "x = []\nx.append(x)\nreturn x",
    "a text of 100 MB": "return 'x' * 100_000_000",
}


@pytest.mark.parametrize("body", UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_value_that_is_none_is_refused(submitted, body):
    with pytest.raises(SubmissionError):
        submitted(task(body))()
    assert submitted(task("return 1"))() == 1


def test_code_of_a_result_does_not_run_here(submitted):
    """Subclasses come back as what they hold, of other objects the name of their type alone."""
    own = task("""
        class Own(tuple):
            def __iter__(self): raise SystemExit
            def __reduce__(self): return exec, ("raise SystemExit",)
        class Other:
            def __reduce__(self): return exec, ("raise SystemExit",)
        return Own((1, 2)), Other()
        """)
    first, second = submitted(own)()
    assert (type(first), first, isinstance(second, wire.Opaque)) == (tuple, (1, 2), True)


def test_the_next_submission_finds_nothing_of_the_one_before(submitted):
    """Its libraries are unchanged, and what the submission's own file was is not there."""
    harm = "import numpy, os\nnumpy.add = None\nreturn os.listdir()"
    first = submitted(task(harm))
    assert first() == [f"{LAB.module}.py"]
    first.__dict__["_remote"].end()
    look = "import os, numpy\nreturn os.listdir(), numpy.add is None"
    assert submitted(task(look))() == ([f"{LAB.module}.py"], False)


def test_a_memory_limit_is_the_kernels(submitted):
    """Set before the first line of the submission runs."""
    attack = submitted("WORKSPACE = bytearray(64 << 20)\n" + task("return 1"))
    with pytest.raises(AssertionError, match="needs more than 16 MiB"):
        attack.__memory_limit__("it", 16, (), {})
    assert submitted(task("return len(bytearray(8 << 20))")).__memory_limit__("it", 16, (), {}) == 8 << 20


HIDDEN = {
    "read-only": """
        for _ in range(3):
            block = mmap.mmap(-1, 10 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            start = ctypes.addressof(ctypes.c_char.from_buffer(block))
            ctypes.memset(start, 1, 10 << 20)
            libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(10 << 20), mmap.PROT_READ) and fail()
            blocks.append(block)
        return 1
        """,
    "mapped for reading": """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
        return mmap.mmap(-1, 1 << 30, flags, mmap.PROT_READ)[0] + 1
        """,
}
"""Memory that RLIMIT_DATA does not count."""


@pytest.mark.parametrize("body", HIDDEN.values(), ids=list(HIDDEN))
def test_a_memory_limit_counts_what_cannot_be_written_to(submitted, body):
    text = """
        import ctypes, mmap
        libc, blocks = ctypes.CDLL(None), []
        def fail():
            raise MemoryError
        """
    attack = submitted(textwrap.dedent(text) + task(body))
    assert attack() == 1
    with pytest.raises(AssertionError, match="needs more than"):
        attack.__memory_limit__("it", 8, (), {})


def test_memory_over_a_library_counts():
    """What RLIMIT_AS does not count: pages that were mapped before, and are written to only now."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size, flags = 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, flags, -1, 0))

    def made_writable() -> bool:
        return libc.mprotect(start, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE) == 0

    child = os.fork()
    if child == 0:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        data = int(status.partition("VmData:")[2].split()[0]) << 10
        confine(1 << 40, data + (4 << 20))
        os._exit(3 if made_writable() else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert made_writable()


def test_a_submissions_own_file_holds_nothing(submitted):
    with pytest.raises(OSError, match="too large"):
        submitted(task("return open(__file__, 'r+b', 0).write(b'x')"))()


def test_no_line_of_the_instructors_is_quoted(submitted, tmp_path):
    """An error whose code claims to be in a file of the instructor's."""
    claims = f"exec(compile('\\n\\n1 / 0', {str(ROOT / 'solutions' / 'x.py')!r}, 'exec'))"
    with pytest.raises(ZeroDivisionError) as raised:
        submitted(task(claims))()
    assert {Path(file).name for file, _, _ in raised.value.__dict__["worker_frames"]} == {f"{LAB.module}.py"}


def link(folder: Path) -> Path:
    """A link to a file of the instructor's instead of the submission."""
    (folder / "src").mkdir()
    (folder / "src" / f"{LAB.module}.py").symlink_to("/etc/passwd")
    return folder


def fifo(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    (folder / "src").mkdir()
    os.mkfifo(folder / "src" / f"{LAB.module}.py")
    return folder


def bomb(folder: Path) -> Path:
    """An archive whose file unpacks to much more than a submission may have."""
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"src/{LAB.module}.py", "#" * (MAX_BYTES + 1))
    return folder / "x.zip"


@pytest.mark.parametrize("plant", [link, fifo, bomb])
def test_only_a_regular_file_of_bounded_size_is_read(plant, tmp_path):
    submission = read_submission(LAB, plant(tmp_path))
    assert submission.problem
    assert b"root:" not in submission.source


@pytest.mark.parametrize("sizes", [(5 << 20, 0, 0), (8, 1, 257 << 20)], ids=["head", "buffer"])
def test_what_comes_over_the_wire_is_bounded_before_it_is_made(sizes):
    """As the worker's side would send it, if it did not check itself."""
    n_head, n_buffers, n_bytes = sizes
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.HEADER.pack(wire.READY, n_head, n_buffers) + bytes(8) + wire.SIZE.pack(n_bytes))
        with pytest.raises(wire.WireError, match=r"allowed|a message holds"):
            wire.receive(ours)


BEYOND = {
    "range": ["range", [0, 1 << 60, 1]],
    "digits": ["integer", "9" * 5000],
    "texts without bytes": ["array", "|S0", [1 << 62]],
    "axes": ["array", "<f8", [1] * 65],
    "axes of a tensor": ["tensor", "float64", [1] * 100_000, False],
    "axes without memory": ["meta", "float32", [1] * 100_000, False],
    "an axis to be found out": ["tensor", "float64", [-1], False],
    "keys of many sets": ["list", [["set", [["integer", str(n)] for n in range(3000)]]] * 2],
    "a map": {1: 2},
    "an extension": wire.msgspec.msgpack.Ext(5, b"x"),
    "a date": wire.msgspec.msgpack.Ext(-1, bytes(4)),
}
"""Values that no `Writer` makes."""


@pytest.mark.parametrize("tree", BEYOND.values(), ids=list(BEYOND))
def test_a_value_is_bounded_before_it_is_made(tree):
    head = wire.msgspec.msgpack.encode(["Returned", tree, None])
    n_bytes = 0 if "S0" in str(tree)[:20] else 8
    with pytest.raises(wire.WireError):
        wire.from_worker(memoryview(head), [memoryview(bytearray(n_bytes))])
