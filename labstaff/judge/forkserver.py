"""The process in the sandbox that has imported everything once, and forks a cell for each answer."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct

from labstaff.judge import server
from labstaff.judge.confine import confine, keep_memory_to_itself

REQUEST = struct.Struct("<QQQ")
"""Number of the cell, bytes of memory, seconds of CPU."""

STATUS = struct.Struct("<Qi")
"""Number of the cell, its wait status."""


def main(descriptor: int, modules: list[str]) -> None:
    """Import `modules`, then make a cell for each request on the control socket, until it closes."""
    control = socket.socket(fileno=descriptor)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    keep_memory_to_itself()
    gc.collect()
    gc.freeze()
    control.sendall(STATUS.pack(0, 0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 1)
        if not data:
            return
        number, memory_bytes, cpu_seconds = REQUEST.unpack(data)
        channel = socket.socket(fileno=descriptors[0])
        child = os.fork()
        if child == 0:
            control.close()
            _live(channel, memory_bytes, cpu_seconds)
        status = _wait(child, channel)
        with contextlib.suppress(OSError):
            control.sendall(STATUS.pack(number, status))


def _live(channel: socket.socket, memory_bytes: int, cpu_seconds: int) -> None:
    """A cell's life; it ends here, whatever happens."""
    try:
        os.setsid()
        confine(memory_bytes, cpu_seconds)
        server.serve(channel)
    finally:
        os._exit(0)


def _wait(child: int, channel: socket.socket) -> int:
    """Until the cell ends or its channel is hung up, which ends it; its wait status."""
    watch = select.poll()
    ended = os.pidfd_open(child)
    watch.register(ended, select.POLLIN)
    watch.register(channel, select.POLLRDHUP | select.POLLHUP)
    watch.poll()
    os.close(ended)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    channel.close()
    return status
