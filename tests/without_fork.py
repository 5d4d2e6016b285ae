"""Runs `lab` or pytest with what Windows' own Python lacks taken away: python -m tests.without_fork lab check 01."""

from __future__ import annotations

import multiprocessing.context
import os
import signal
import subprocess  # noqa: F401  it needs some of the names itself
import sys

FROM_OS = "fork forkpty getpgid killpg mkfifo pidfd_open register_at_fork sched_getaffinity setsid waitid".split()  # noqa: SIM905
FROM_SIGNAL = "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPROF SIGVTALRM pidfd_send_signal pthread_kill setitimer".split()  # noqa: SIM905
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")

# At the top: a process that is spawned imports this module again, and lacks them too.
for name in FROM_OS:
    delattr(os, name)
for name in FROM_SIGNAL:
    delattr(signal, name)
for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]
for method in ("fork", "forkserver"):
    multiprocessing.context._concrete_contexts.pop(method)  # type: ignore[attr-defined]


def main() -> None:
    """Run the command in the arguments."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "pytest":
        import pytest

        sys.exit(pytest.main(sys.argv[1:]))
    from labkit.commands import cli

    cli.main()


if __name__ == "__main__":
    main()
