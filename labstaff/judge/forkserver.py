"""The process in the box that has imported everything once, and forks a cell for each answer: walls around each.

A cell has a space of process numbers, a view of files and, where the grader is root, a user of its own. Whoever the
grader is, it has no powers left when the first line of an answer's text is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from labkit.suite.forkserver import serve, warm_up
from labstaff.judge import server
from labstaff.judge.confine import SCRATCH, SCRATCH_BYTES, bound_memory, confine, give_memory_back, libc

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MOST_CPUINFO = 512 << 10
FIRST_USER, N_USERS = 0x70000000, 4096


def main(modules: str, walls: str, control: str) -> None:
    """Import `modules`, then make a cell for each request on the control socket, until nobody holds its other end.

    Args:
        walls: "users" where each cell gets a user of its own, "namespaces" where it gets a user namespace, "" for none.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    warm_up(modules.split(","))
    with contextlib.suppress(AttributeError):
        libc().malloc_trim(0)
    first_user = FIRST_USER + N_USERS * int.from_bytes(os.urandom(2))  # boxes side by side share no user

    def live(request: bytes, descriptors: list[int]) -> None:
        asked = json.loads(request)
        channel = socket.socket(fileno=descriptors[0])
        for module in asked["modules"]:
            with contextlib.suppress(Exception):  # loading the answer will report it
                importlib.import_module(module)
        if asked["is_measured"]:
            give_memory_back()
        bound_memory(asked["memory_bytes"])  # while /proc is there to be asked
        if walls:
            wall_in(first_user + asked["number"] % N_USERS if walls == "users" else None)
        confine(asked["cpu_seconds"])
        server.serve(channel)

    serve(socket.socket(fileno=int(control)), live, _forker_into_own_pids() if walls else os.fork)


def wall_in(user: int | None) -> None:
    """Give this process its own view of files, with nothing of other cells, and another user.

    Args:
        user: whom to become; None to keep the user, in a user namespace of its own.
    """
    before = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWNS | (CLONE_NEWUSER if user is None else 0))
    if user is None:
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in zip(("uid", "gid"), before, strict=True):
            Path(f"/proc/self/{name}_map").write_text(f"{number} {number} 1")
    _mount_empty(SCRATCH, f"size={SCRATCH_BYTES},nr_inodes=256,mode=1777", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    processors = Path("/proc/cpuinfo").read_bytes()[:MOST_CPUINFO]
    _mount_empty("/proc", "size=1m,nr_inodes=4,mode=755", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    Path("/proc/cpuinfo").write_bytes(processors)  # torch reads it, and nothing else of /proc
    _call(
        "mount", None, b"/proc", None, ctypes.c_ulong(MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC), None
    )
    os.chdir(SCRATCH)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _mount_empty(place: str, options: str, flags: int) -> None:
    _call("mount", b"none", place.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())


def _forker_into_own_pids() -> Callable[[], int]:
    """A function that forks a child which is the first process of a space of its own and sees no other."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork() -> int:
        _call("unshare", CLONE_NEWPID)
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                _call("setns", own, CLONE_NEWPID)
        if not child:
            os.close(own)
        return child

    return fork


def _call(name: str, *arguments: object) -> None:
    if getattr(libc(), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
