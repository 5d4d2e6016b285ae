"""The process inside the sandbox: imports torch once, then forks one worker after another."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import socket
import struct
import traceback

from labstaff.grader.confine import become, end_with_parent
from labstaff.grader.worker import serve

ENDED = struct.Struct("<id")
"""What is reported of a worker: its wait status and its CPU seconds."""


def main(modules: str, scratch: str, user: str, is_alone: str, control: str) -> None:
    """Import `modules`; for each socket that comes over `control`, fork a worker that serves it, and report its end.

    A message without a socket asks whether this process goes on; it is sent back. It does not go on when a worker has
    left anything: a process, or a file that cannot be removed.

    Args:
        scratch: the folder for the submission's file, in which a worker can then create nothing; emptied after each.
        user: the user to become, "" for none.
        is_alone: "1" where no other process can be seen from here.
    """
    become(user, scratch)
    end_with_parent()
    for module in modules.split(","):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    os.chdir(scratch)
    channel = socket.socket(fileno=int(control))
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1, 1)
        if not data:
            return
        if not files:
            channel.send(data)
            continue
        worker = os.fork()
        if worker == 0:
            channel.close()
            _live(files[0])
        os.close(files[0])
        _, status, usage = os.wait4(worker, 0)
        is_clean = _emptied(scratch) and not (is_alone and _any_process())
        channel.send(ENDED.pack(status, usage.ru_utime + usage.ru_stime))
        if not is_clean:
            return


def _live(file: int) -> None:
    """A worker's life; what goes wrong before it serves is written to stderr."""
    status = 70
    try:
        channel, nowhere = socket.socket(fileno=file), os.open(os.devnull, os.O_RDWR)
        end_with_parent()
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        serve(channel)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def _emptied(scratch: str) -> bool:
    """Remove the submission's file, and what libraries wrote before it was loaded."""
    os.chmod(scratch, 0o700)
    for entry in os.scandir(scratch):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
    return not os.listdir(scratch)


def _any_process() -> bool:
    try:
        os.kill(-1, 0)  # to every other process that this one may signal
    except ProcessLookupError:
        return False
    return True
