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
        TimeoutError: it was not there within `seconds`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    length, n_buffers = HEADER.unpack(_exactly(channel, bytearray(HEADER.size), deadline))
    if length > MOST_HEAD or n_buffers > MOST_BUFFERS:
        raise CodecError(f"a message of {length + n_buffers:,} bytes, {MOST_HEAD:,} and {MOST_BUFFERS:,} may cross")
    head = _exactly(channel, bytearray(length), deadline)
    if not n_buffers:
        return head, memoryview(b"")
    pages = mmap.mmap(-1, n_buffers, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # taken as data comes
    return head, _exactly(channel, pages, deadline)


def padded(length: int) -> int:
    """`length`, up to where the next buffer may begin."""
    return -(-length // ALIGNED) * ALIGNED


def _exactly(channel: socket.socket, memory: bytearray | mmap.mmap, deadline: float | None) -> memoryview:
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
