"""Takes from a process, for good, what an answer does not need: processes, the network, more memory, more time."""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct
from pathlib import Path

MEMORY_BYTES = 3 << 30
CPU_SECONDS = 180
FILE_BYTES = 16 << 20

X86_64, AARCH64 = 0xC000003E, 0xC00000B7
CLONE_THREAD = 0x10000
CLONE3, CLONE = "clone3", "clone"

NUMBERS = {
    "x86_64": (
        X86_64,
        {CLONE: 56, CLONE3: 435},
        # fork vfork execve execveat; kill tkill tgkill; socket connect bind socketpair; ptrace process_vm_read, _write;
        # unshare setns mount bpf io_uring_setup userfaultfd perf_event_open keyctl pidfd_send_signal pidfd_getfd
        (
            *(57, 58, 59, 322, 62, 200, 234, 41, 42, 49, 53, 101, 310, 311),
            272,
            308,
            165,
            321,
            425,
            323,
            298,
            250,
            424,
            438,
        ),
    ),
    "aarch64": (
        AARCH64,
        {CLONE: 220, CLONE3: 435},
        (221, 281, 129, 130, 131, 198, 203, 200, 199, 117, 270, 271, 97, 268, 40, 280, 425, 282, 241, 219, 424, 438),
    ),
}
"""System calls by machine: the two that may start a thread, and those that are refused."""

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def confine(memory_bytes: int = MEMORY_BYTES, cpu_seconds: int = CPU_SECONDS) -> None:
    """Bound this process and forbid it processes, programs, signals and sockets. Threads remain possible.

    Memory counts from what the process holds now. The filter is seccomp's (Linux, x86-64 and ARM64); elsewhere only the
    bounds hold.
    """
    bounds = {
        resource.RLIMIT_DATA: _data_bytes() + memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds + int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))
    if platform.machine() in NUMBERS and platform.system() == "Linux":
        _filter_calls(*NUMBERS[platform.machine()])


def keep_memory_to_itself() -> None:
    """Let no other process of the same user read or write this one's memory through /proc."""
    if platform.system() == "Linux":
        _libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _data_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 4 << 30
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))


def _filter_calls(machine: int, clones: dict[str, int], refused: tuple[int, ...]) -> None:
    """A classic BPF program over (call number, machine, arguments): see seccomp(2)."""
    load, equal, bits, give = 0x20, 0x15, 0x45, 0x06

    def step(code: int, value: int, then: int = 0, other: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, other, value)

    program = [step(load, 4), step(equal, machine, 1, 0), step(give, ERRNO | errno.EPERM), step(load, 0)]
    for number in refused:
        program += [step(equal, number, 0, 1), step(give, ERRNO | errno.EPERM)]
    program += [step(equal, clones[CLONE3], 0, 1), step(give, ERRNO | errno.ENOSYS)]  # libc then falls back on clone
    program += [step(equal, clones[CLONE], 0, 3), step(load, 16), step(bits, CLONE_THREAD, 1, 0)]
    program += [step(give, ERRNO | errno.EPERM), step(give, ALLOW)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    code = b"".join(program)
    held = ctypes.create_string_buffer(code, len(code))
    given = Program(len(program), ctypes.cast(held, ctypes.c_void_p))
    libc = _libc()
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(given)
    ):
        raise OSError(ctypes.get_errno(), "the filter of system calls was not accepted")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
