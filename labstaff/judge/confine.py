"""Takes from a process, for good, what an answer does not need: processes, the network, files, more memory, more time.

The filter of system calls allows rather than forbids: what is not on the list is refused, calls under other numbers
(x32) included. Memory that RLIMIT_DATA does not count cannot be had: shared mappings, stacks that grow, files and
segments in memory, pipes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import platform
import resource
import struct
from pathlib import Path

SCRATCH, SCRATCH_BYTES = "/scratch", 16 << 20
"""Where an answer may write. Not /tmp: the grader's own environment may lie below that."""


MEMORY_BYTES = 3 << 30
CPU_SECONDS = 600
"""The wall behind the limits of tests and of a whole suite, which stop an answer long before, and say so."""
FILE_BYTES = 16 << 20
MOST_FILES = 64
MOST_THREADS = 64

X86_64, AARCH64 = 0xC000003E, 0xC00000B7
CAN_FILTER = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
"""Whether the filter of system calls is known for this machine: a process behind it can make no other."""

CALLS = {
    # name: its number on x86-64 and on ARM64, None where there is none
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23),
    "dup3": (292, 24), "open": (2, None), "openat": (257, 56), "fstat": (5, 80), "stat": (4, None),
    "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getcwd": (79, 17), "getdents64": (217, 61), "unlink": (87, None),
    "unlinkat": (263, 35), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "ftruncate": (77, 46), "fsync": (74, 82),
    "fdatasync": (75, 83), "umask": (95, 166), "fadvise64": (221, 223), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "recvfrom": (45, 207), "sendto": (44, 206),
    "brk": (12, 214), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233),
    "mincore": (27, 232), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "tgkill": (234, 131),
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "set_tid_address": (218, 96), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "get_mempolicy": (239, 236), "arch_prctl": (158, None),
    "exit": (60, 93), "exit_group": (231, 94), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "getpgrp": (111, None),
    "getpgid": (121, 155), "getsid": (124, 156), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103), "getrusage": (98, 165),
    "getrlimit": (97, 163), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278), "getcpu": (309, 168),
}  # fmt: skip
"""System calls that are let through whatever their arguments."""

MMAP, FCNTL, IOCTL, CLONE, PRCTL, PRLIMIT = (9, 222), (72, 25), (16, 29), (56, 220), (157, 167), (302, 261)
CLONE3 = (435, 435)
UNCOUNTED_MEMORY = 0x1 | 0x100 | 0x40000  # MAP_SHARED, MAP_GROWSDOWN, MAP_HUGETLB
NOT_A_THREAD = 0x7E020080  # namespaces of every kind
CLONE_THREAD = 0x10000
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)  # duplicates, flags and locks; no owners, signals, sizes of pipes
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # whether it is a terminal; blocking; on exec
PRCTL_COMMANDS = (15, 16, 0x53564D41)  # names of threads and of mappings

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 32 << 10

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16
LOAD, EQUAL, BITS, GIVE = 0x20, 0x15, 0x45, 0x06


def confine(cpu_seconds: int = CPU_SECONDS) -> None:
    """Bound this process, take all its powers, and leave it the calls of CALLS. Threads remain possible.

    Without Linux, or on another machine than x86-64 and ARM64, only the bounds hold.
    """
    taken = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    bounds = {
        resource.RLIMIT_CPU: cpu_seconds + int(taken) + 1,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: MOST_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if hasattr(resource, "RLIMIT_MSGQUEUE"):
        bounds |= {resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_NPROC: MOST_THREADS}
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))
    if platform.system() == "Linux":
        drop_powers()
        libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        if CAN_FILTER:
            _filter_calls(platform.machine())


def bound_memory(n_bytes: int) -> None:
    """Let this process hold so many bytes more than it holds now, for good."""
    bound = data_bytes() + n_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def give_memory_back() -> None:
    """Have each large array lie by itself, so that what is freed goes back at once: a bound then counts what is alive.

    glibc otherwise keeps what was freed between what still lives, several times as much where sizes alternate.
    """
    with contextlib.suppress(AttributeError):  # another C library
        libc().mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        libc().mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)


def data_bytes() -> int:
    """The bytes of this process that RLIMIT_DATA counts; a generous guess where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 4 << 30
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))


def drop_powers() -> None:
    """Give up every capability, and the way back to them."""
    if libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was not accepted")
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if libc().capset(header, none):
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def libc() -> ctypes.CDLL:
    """The C library."""
    return ctypes.CDLL(None, use_errno=True)


def _filter_calls(machine: str) -> None:
    """Install the filter: a classic BPF program over (call number, machine, arguments), see seccomp(2)."""
    which = 0 if machine == "x86_64" else 1
    program = b"".join(_program(X86_64 if which == 0 else AARCH64, which))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    held = ctypes.create_string_buffer(program, len(program))
    given = Program(len(program) // 8, ctypes.cast(held, ctypes.c_void_p))
    if libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(given)):
        raise OSError(ctypes.get_errno(), "the filter of system calls was not accepted")


def _program(machine: int, which: int) -> list[bytes]:
    refuse = _step(GIVE, ERRNO | errno.EPERM)
    program = [_step(LOAD, MACHINE), _step(EQUAL, machine, 1, 0), refuse, _step(LOAD, NUMBER)]
    for numbers in CALLS.values():
        if numbers[which] is not None:
            program += [_step(EQUAL, numbers[which] or 0, 0, 1), _step(GIVE, ALLOW)]
    program += [_step(EQUAL, CLONE3[which], 0, 1), _step(GIVE, ERRNO | errno.ENOSYS)]  # libc then falls back on clone
    for call, body in (
        (MMAP, [*_argument(3), _step(BITS, UNCOUNTED_MEMORY, 0, 1), refuse, _step(GIVE, ALLOW)]),
        (CLONE, [*_argument(0), _step(BITS, NOT_A_THREAD, 2, 0), _step(BITS, CLONE_THREAD, 0, 1), _step(GIVE, ALLOW)]),
        (FCNTL, _one_of(1, FCNTL_COMMANDS)),
        (IOCTL, _one_of(1, IOCTL_COMMANDS)),
        (PRCTL, _one_of(0, PRCTL_COMMANDS)),
        (PRLIMIT, _reads_own_limits()),
    ):
        block = [*body, refuse]
        program += [_step(EQUAL, call[which], 0, len(block)), *block]
    return [*program, refuse]


def _one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    tests = [step for value in values for step in (_step(EQUAL, value, 0, 1), _step(GIVE, ALLOW))]
    return [*_argument(argument), *tests]


def _reads_own_limits() -> list[bytes]:
    """For prlimit64(pid, …, new, …): of no other process, and nothing new."""
    words = [ARGUMENTS, ARGUMENTS + 16, ARGUMENTS + 20]  # pid; the pointer to new limits, both halves
    steps: list[bytes] = []
    for place, word in enumerate(words):
        left = 2 * (len(words) - place) - 1
        steps += [_step(LOAD, word), _step(EQUAL, 0, 0, left)]
    return [*steps, _step(GIVE, ALLOW)]


def _argument(number: int) -> list[bytes]:
    return [_step(LOAD, ARGUMENTS + 8 * number)]


def _step(code: int, value: int, then: int = 0, other: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, other, value)
