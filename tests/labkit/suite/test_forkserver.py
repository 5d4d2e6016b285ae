"""One parent, many children at a time: who waits, who is killed, who is told what."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from labkit.suite.forkserver import ForkServer, ServerEnded

SERVER = """
import os, signal, socket, sys, time
from labkit.suite.forkserver import serve

def live(request, descriptors):
    what, _, rest = request.partition(b" ")
    if what == b"write":
        os.write(descriptors[0], rest)
        return 7
    if what == b"sleep":
        time.sleep(10)
    if what == b"die":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == b"end_the_server":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(10)
    if what == b"count_files":
        return len(os.listdir("/proc/self/fd"))

serve(socket.socket(fileno=int(sys.argv[1])), live)
"""


@pytest.fixture
def server():
    server = ForkServer([sys.executable, "-c", SERVER])
    yield server
    server.close()


def test_a_child_is_given_the_request_and_the_files(server):
    reader, writer = os.pipe()
    child = server.fork(b"write hello", [writer])
    os.close(writer)
    assert os.read(reader, 100) == b"hello"
    assert os.waitstatus_to_exitcode(child.wait(20).status) == 7
    os.close(reader)


def test_one_that_sleeps_keeps_nobody_waiting(server):
    asleep = server.fork(b"sleep")
    assert server.fork(b"die").wait(20).signal == signal.SIGTERM
    with pytest.raises(TimeoutError):
        asleep.wait(0.05)
    assert asleep.kill().signal == signal.SIGKILL


def test_who_hangs_up_kills_its_child_alone(server):
    first, second = server.fork(b"sleep"), server.fork(b"sleep")
    first.kill()
    with pytest.raises(TimeoutError):
        second.wait(0.05)
    second.kill()


def test_many_threads_may_ask(server):
    found = []

    def ask():
        found.append(server.fork(b"die").wait(20).signal)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [signal.SIGTERM] * 20


def test_large_requests_cross(server):
    assert server.fork(b"die " + bytes(3 << 20)).wait(20).signal == signal.SIGTERM


def test_a_child_holds_nothing_of_the_others(server):
    alone = server.fork(b"count_files").wait(20).status
    sleepers = [server.fork(b"sleep") for _ in range(5)]
    assert server.fork(b"count_files").wait(20).status == alone
    for sleeper in sleepers:
        sleeper.kill()


def test_a_dead_server_is_told_apart_from_a_dead_child(server):
    sleeper = server.fork(b"sleep")
    with pytest.raises(ServerEnded):
        server.fork(b"end_the_server").wait(20)
    with pytest.raises(ServerEnded):
        sleeper.wait(20)
    server.process.wait()
    with pytest.raises(ServerEnded):  # by `wait` where a child has not yet come to close its copy of the socket
        server.fork(b"die").wait(20)
