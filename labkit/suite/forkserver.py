"""A process that has imported everything once and forks a child for each request, many at a time.

The server's side is `serve`, the other one `ForkServer`. A request is bytes and open files; its *line*, a socket, ties
the two: when the asker hangs up the child is killed, when the child has ended the asker is told how. Only Python's own
modules are needed, so that a copy of this file runs in the judge's box too.

The server computes nothing and starts no threads: forking a process whose OpenMP threads have run would hang the child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

MOST_DESCRIPTORS = 8
LENGTH = struct.Struct("<Q")
ENDED = struct.Struct("<id")
END_SECONDS = 30.0


class ServerEnded(Exception):
    """The fork server has ended by itself, so that nobody knows how its children did."""


class Ended(NamedTuple):
    """How a child ended: its wait status (`os.waitpid`), and the CPU time it took, in seconds."""

    status: int
    cpu_seconds: float

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that ended it."""
        return signal.Signals(os.WTERMSIG(self.status)) if os.WIFSIGNALED(self.status) else None


class Child:
    """A request's child, from its asker's side."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._ended: Ended | None = None

    def wait(self, seconds: float | None = None) -> Ended:
        """How it ended, once it has.

        Raises:
            TimeoutError: it has not within `seconds`.
            ServerEnded: nobody will ever tell.
        """
        if self._ended is None:
            self._line.settimeout(seconds)
            try:
                self._ended = Ended(*ENDED.unpack(receive_exactly(self._line, ENDED.size)))
            except (EOFError, ConnectionError):
                raise ServerEnded("the process that forks has ended by itself") from None
        return self._ended

    def kill(self) -> Ended:
        """End it, unless it has ended; how it did."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        try:
            return self.wait(END_SECONDS)
        except TimeoutError:
            raise ServerEnded(f"a child that was to end has not within {END_SECONDS:g} s") from None
        finally:
            self._line.close()


class Forker:
    """What asks a process that serves forks for children, over its control socket. Threads and forks may share one.

    Args:
        child: that process, where it is itself a fork.
    """

    def __init__(self, control: socket.socket, child: Child | None = None) -> None:
        self._control, self._child = control, child

    def fork(self, request: bytes, descriptors: Iterable[int] = ()) -> Child:
        """Have a child made that is given `request` and copies of open files.

        Raises:
            ServerEnded: there is no server any more. Just after its end `Child.wait` may be the one to say so.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"+"], [theirs.fileno(), *descriptors])
            ours.sendall(LENGTH.pack(len(request)) + request)
        except (ConnectionError, ValueError, OSError) as error:
            ours.close()
            raise ServerEnded(f"the process that forks has ended: {error}") from None
        return Child(ours)

    def close(self) -> None:
        """Have the server end, and its children."""
        self._control.close()
        if self._child:
            with contextlib.suppress(TimeoutError, ServerEnded):
                self._child.wait(END_SECONDS)
            with contextlib.suppress(ServerEnded):
                self._child.kill()


class ForkServer(Forker):
    """A fork server, from its askers' side.

    Args:
        command: what to run; the number of the control socket is put behind it, for `serve`.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        control, theirs = socket.socketpair()
        super().__init__(control)
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )

    def close(self) -> None:
        """End the server and its children, and wait for it."""
        super().close()
        try:
            self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def warm_up(modules: Iterable[str]) -> None:
    """Import what is there of `modules`, and keep a child's collector from touching, and so copying, all of it."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def serve(
    control: socket.socket,
    live: Callable[[bytes, list[int]], int | None],
    fork: Callable[[], int] = os.fork,
    before: Callable[[bytes], None] = lambda request: None,
) -> None:
    """Answer requests until nobody holds the other end of `control`; then end every child.

    Args:
        live: a child's life: called in it with the request and its open files; what it returns is the exit status.
        fork: makes the child, as `os.fork` does.
        before: called with each request in the server itself, which nobody else's request passes meanwhile.
    """
    _Server(control, live, fork, before).run()


def receive_exactly(channel: socket.socket, length: int) -> bytes:
    """That many bytes of a stream. Raises EOFError when it ends before."""
    parts = bytearray()
    while len(parts) < length:
        part = channel.recv(length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Server:
    def __init__(
        self,
        control: socket.socket,
        live: Callable[[bytes, list[int]], int | None],
        fork: Callable[[], int],
        before: Callable[[bytes], None],
    ) -> None:
        self.control, self.live, self.fork, self.before = control, live, fork, before
        self.lines: dict[int, socket.socket] = {}  # by the child's number
        self.children: dict[int, int] = {}  # by the descriptor of their lines
        self.poll = select.poll()
        self.woken, waker = os.pipe()
        for end in (self.woken, waker):
            os.set_blocking(end, False)
        self.own = (self.woken, waker)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(self.woken, select.POLLIN)
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.woken, 4096)
                    self.reap()
                elif descriptor in self.children:
                    self.hung_up(descriptor)
                elif descriptor == self.control.fileno() and not self.answer():
                    for child in self.lines:
                        _kill(child)
                    return

    def answer(self) -> bool:
        """Take one request; False when there will be no more."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1, MOST_DESCRIPTORS)
        except ConnectionError:
            return False
        if not data:
            return False
        line, *others = descriptors
        held = socket.socket(fileno=line)
        try:
            (length,) = LENGTH.unpack(receive_exactly(held, LENGTH.size))
            request = receive_exactly(held, length)
            self.before(request)
            child = self.fork()
        except (EOFError, OSError):  # the asker sees its line end without a word
            held.close()
        else:
            if child == 0:
                held.close()
                self.become(request, others)
            self.lines[child] = held
            self.children[held.fileno()] = child
            self.poll.register(held, select.POLLIN)  # nothing more comes on it but its end
        finally:
            for descriptor in others:
                os.close(descriptor)
        return True

    def become(self, request: bytes, descriptors: list[int]) -> None:
        """A child's life; it ends here, whatever happens."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for other in (self.control, *self.lines.values()):
                other.close()
            for end in self.own:
                os.close(end)
            status = self.live(request, descriptors) or 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def hung_up(self, descriptor: int) -> None:
        self.poll.unregister(descriptor)
        _kill(self.children.pop(descriptor))

    def reap(self) -> None:
        for child in list(self.lines):
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if not ended:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what it has left behind
            line = self.lines.pop(child)
            if self.children.pop(line.fileno(), None):
                self.poll.unregister(line)
            with contextlib.suppress(OSError):
                line.sendall(ENDED.pack(status, usage.ru_utime + usage.ru_stime))
            line.close()


def _kill(child: int) -> None:
    for kill in (os.killpg, os.kill):  # a child that is not yet the leader of its group is killed by itself
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
