"""Messages on a stream: a head of bounded length, and the buffers of arrays behind it, which nobody copies."""

from __future__ import annotations

import mmap
import socket
import struct
import time
from collections.abc import Sequence

HEADER = struct.Struct("<IQ")
MOST_HEAD = 4 << 20
MOST_BUFFERS = 256 << 20
ALIGNED = 64
TOO_MUCH = "it is nested too deep, or has too many parts, or too much text"


class CodecError(Exception):
    """What is to cross, or has crossed, is not a message, or too much of one."""


def send(channel: socket.socket, head: bytes, buffers: Sequence[memoryview] = ()) -> None:
    """Put a message on a stream; each buffer begins at a multiple of 64 bytes.

    Raises:
        CodecError: it is longer than any may be; nothing was sent.
    """
    length = sum(map(padded, map(len, buffers)))
    if len(head) > MOST_HEAD:
        raise CodecError(TOO_MUCH)
    if length > MOST_BUFFERS:
        raise CodecError(f"{length:,} bytes of arrays, {MOST_BUFFERS:,} at most may cross")
    channel.sendall(HEADER.pack(len(head), length) + head)
    for buffer in buffers:
        channel.sendall(buffer)
        channel.sendall(bytes(padded(len(buffer)) - len(buffer)))


def receive(channel: socket.socket, seconds: float | None = None) -> tuple[memoryview, memoryview]:
    """The next message on a stream: its head, and its buffers in memory that no meter counts as an allocation.

    Raises:
        EOFError: the other side has gone.
        CodecError: the message is longer than any may be.
        MemoryError: there is no room for it; it was taken from the stream all the same.
        TimeoutError: it was not there within `seconds`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    length, n_buffers = HEADER.unpack(_exactly(channel, bytearray(HEADER.size), deadline))
    if length > MOST_HEAD or n_buffers > MOST_BUFFERS:
        raise CodecError(f"a message of {length + n_buffers:,} bytes, {MOST_HEAD:,} and {MOST_BUFFERS:,} may cross")
    try:
        head, pages = bytearray(length), _pages(n_buffers)
    except (MemoryError, OSError):
        _pass_over(channel, length + n_buffers, deadline)
        raise MemoryError(f"no room for a message of {length + n_buffers:,} bytes") from None
    return _exactly(channel, head, deadline), _exactly(channel, pages, deadline)


def padded(length: int) -> int:
    """`length`, up to where the next buffer may begin."""
    return -(-length // ALIGNED) * ALIGNED


def _pages(n_bytes: int) -> bytearray | mmap.mmap:
    """Memory that is taken as data comes."""
    if not n_bytes:
        return bytearray()
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _pass_over(channel: socket.socket, n_bytes: int, deadline: float | None) -> None:
    while n_bytes:
        n_bytes -= len(_exactly(channel, memoryview(_passed_over)[:n_bytes], deadline))


_passed_over = bytearray(1 << 16)
"""Where it goes: made before there is want of memory."""


def _exactly(channel: socket.socket, memory: bytearray | mmap.mmap | memoryview, deadline: float | None) -> memoryview:
    view, n_read = memoryview(memory), 0
    while n_read < len(view):
        if deadline is not None:
            channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            n_now = channel.recv_into(view[n_read:])
        finally:
            if deadline is not None:
                channel.settimeout(None)
        if not n_now:
            raise EOFError
        n_read += n_now
    return view
