# ruff: noqa: SIM905 — a long list of names is read best as words
"""Bounds a worker before the submission is loaded: resource limits, and a filter of system calls (seccomp).

Two limits bound memory, since each counts what the other does not: RLIMIT_AS every mapping, also one that was made
read-only after it was written; RLIMIT_DATA what can be written, also where a library was mapped before. What neither
counts cannot be made: files, pipes, sockets, locks, and files in memory. The filter allows rather than refuses: a call
that is not listed fails with EPERM. No process can be started.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
from collections.abc import Mapping

CPU_SECONDS = 600
"""Far behind the limits of a test and of a suite."""
MEMORY_BYTES = 3 << 30
"""What a worker may map, and what it may have to write to, beyond what is there when the submission is loaded."""
LIMITS = {
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: max(64, 2 * (os.cpu_count() or 1)),  # threads count: torch may start one a core
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
}
ALLOWED = (
    "read write readv writev pread64 pwrite64 lseek close close_range dup dup3 open openat fstat stat lstat "
    "newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir getdents64 "
    "umask fadvise64 poll "
    "ppoll select pselect6 recvfrom sendto brk munmap mremap mprotect madvise mincore membarrier rt_sigaction "
    "rt_sigprocmask rt_sigreturn rt_sigpending sigaltstack restart_syscall futex set_robust_list "
    "get_robust_list rseq set_tid_address sched_yield sched_getaffinity sched_getparam sched_getscheduler "
    "sched_get_priority_max sched_get_priority_min get_mempolicy arch_prctl exit exit_group gettid getpid getppid "
    "getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getpgid getsid clock_gettime clock_getres "
    "clock_nanosleep nanosleep gettimeofday time times getitimer setitimer getrusage getrlimit uname sysinfo "
    "getrandom getcpu"
).split()
UNCOUNTED_MEMORY = 0x1 | 0x100 | 0x40000  # MAP_SHARED, MAP_GROWSDOWN, MAP_HUGETLB: RLIMIT_DATA does not count it
CLONE_THREAD, NEW_NAMESPACES = 0x10000, 0x7E020080
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)  # duplicates and flags; no locks, owners, signals, sizes of pipes
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal; blocking; close on exec
PRCTL_COMMANDS = (15, 16, 0x53564D41)  # names of threads and mappings
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE_BYTES = -1, -3, 32 << 10


def confine(mapped_bytes: int, data_bytes: int) -> None:
    """Apply the limits and the filter to this process, for good. Threads remain possible.

    Args:
        mapped_bytes: all its mappings together.
        data_bytes: of them, those that are private and can be written to.
    """
    limit(LIMITS | {resource.RLIMIT_AS: mapped_bytes, resource.RLIMIT_DATA: data_bytes})
    filter_calls()


def limit(limits: Mapping[int, int]) -> None:
    """Apply limits of the kernel to this process, for good, and none that is higher than it has."""
    for kind, bound in limits.items():
        _, hard = resource.getrlimit(kind)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def become(user: str, scratch: str) -> None:
    """Become `user`, who owns the folder `scratch` from now on; nothing where it is ""."""
    if user:
        os.chown(scratch, int(user), int(user))
        os.setgroups([])
        os.setresgid(*[int(user)] * 3)
        os.setresuid(*[int(user)] * 3)


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent has ended; changing the user undoes it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def filter_calls() -> None:
    """Install the filter of system calls.

    Raises:
        RuntimeError: libseccomp is not installed.
    """
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in ALLOWED:
        rules.add_rule(seccomp.ALLOW, name)
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")  # the C library then uses clone
    rules.add_rule(seccomp.ALLOW, "mmap", seccomp.Arg(3, seccomp.MASKED_EQ, UNCOUNTED_MEMORY, 0))
    thread = seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD | NEW_NAMESPACES, CLONE_THREAD)
    rules.add_rule(seccomp.ALLOW, "clone", thread)
    rules.add_rule(seccomp.ALLOW, "tgkill", seccomp.Arg(0, seccomp.EQ, os.getpid()))  # abort() and the like: itself
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0))  # no other process; limits only fall
    for name, place, commands in (
        ("fcntl", 1, FCNTL_COMMANDS),
        ("ioctl", 1, IOCTL_COMMANDS),
        ("prctl", 0, PRCTL_COMMANDS),
    ):
        for command in commands:
            rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(place, seccomp.MASKED_EQ, 0xFFFFFFFF, command))
    rules.load()


def give_memory_back() -> None:
    """Have freed arrays returned to the kernel at once, so that a memory limit counts what is alive."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
        libc.malloc_trim(0)
