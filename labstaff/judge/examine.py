"""What a file's text says of it, without running it: in a child with limits, since a text can take hours to parse."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from labkit.suite.forkserver import LENGTH, Child, ForkServer, ServerEnded, serve, warm_up
from labstaff.judge import policy

ROOT = Path(__file__).resolve().parents[2]
CPU_SECONDS = 5
WAIT_SECONDS = 120
MEMORY_BYTES = 1 << 30
MOST_FINDINGS = 20
MOST_RUNS = 20_000
RUN = 12


class Examined(NamedTuple):
    """What a grader should know of a file, its runs of syntax, and why it is not to be run (mostly nothing)."""

    flags: list[str]
    runs: list[int]
    problem: str = ""


class ExamineFailed(Exception):
    """The child did not come to an end, through no fault of the text."""


def examine(source: bytes, module: str) -> Examined:
    """Look at a file's text at the cost of `CPU_SECONDS` of processor time and `MEMORY_BYTES` of memory at most.

    Args:
        module: the file's name without `.py`.

    Raises:
        ExamineFailed: this machine did not give the child its time or memory.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    reader, writer = os.pipe()
    try:
        try:
            child = _forked(LENGTH.pack(len(module)) + module.encode() + source, writer)
        finally:
            os.close(writer)
        try:
            told = _all_of(reader, deadline)
            ended = child.wait(max(0.001, deadline - time.monotonic()))
        finally:
            with contextlib.suppress(ServerEnded):
                child.kill()
    except TimeoutError:
        raise ExamineFailed(f"{module}.py was not parsed within {WAIT_SECONDS} s") from None
    except ServerEnded as error:
        raise ExamineFailed(f"{module}.py was not parsed: {error}") from None
    finally:
        os.close(reader)
    if ended.signal == signal.SIGKILL:
        raise ExamineFailed(f"the process that parses {module}.py was killed")
    if ended.status:
        return Examined([], [], f"{module}.py is too deep, too large or too slow to parse: it was not run")
    found = json.loads(told)
    return Examined([f"{module}.py line {line}: {what}" for line, what in found["found"]], found["runs"])


def end() -> None:
    """End the process that examines; the next text begins another."""
    with _starting:
        while _servers:
            _servers.pop().close()


def _all_of(reader: int, deadline: float) -> bytes:
    """What comes through a pipe until its other end is closed. Raises TimeoutError when that is not by `deadline`."""
    parts: list[bytes] = []
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise TimeoutError


_servers: list[ForkServer] = []
_starting = threading.Lock()


def _forked(request: bytes, writer: int) -> Child:
    """A child that examines what is asked for, of the one process that has imported what that takes.

    That one ends with this process, or by `end`; where it has ended before, another is begun.

    Raises:
        ExamineFailed: no child can be had.
    """
    why = ""
    for _attempt in range(2):
        with _starting:
            if not _servers:
                environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
                _servers.append(ForkServer([sys.executable, "-P", "-S", "-m", __name__], environment))
            server = _servers[-1]
        try:
            return server.fork(request, [writer])
        except ServerEnded as error:
            why = str(error)
            with _starting:
                if server in _servers:
                    _servers.remove(server)
                    server.close()
    raise ExamineFailed(why)


def main(control: str) -> None:
    """The life of the process that forks a child for each text."""
    os.chdir("/")
    warm_up(())
    serve(socket.socket(fileno=int(control)), _live)


def _live(request: bytes, descriptors: list[int]) -> None:
    """A child's life: the module's name and the text are the request, what is found goes to the one open file."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))  # at the second, SIGKILL
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    begin = LENGTH.size + LENGTH.unpack_from(request)[0]
    module, source = request[LENGTH.size : begin].decode(), request[begin:]
    with os.fdopen(descriptors[0], "w", encoding="utf-8") as out:
        json.dump(_found(source, module), out)


def _found(source: bytes, module: str) -> dict[str, list[Any]]:
    try:
        tree = ast.parse(source.decode())  # as it is judged, whatever encoding its text names
    except (SyntaxError, ValueError):  # the suite's run says so, with the line
        return {"found": [], "runs": []}
    found = [*policy.breaches(tree, frozenset({module})), *policy.oddities(tree)]
    if len(found) > MOST_FINDINGS:
        found[MOST_FINDINGS:] = [policy.Finding(found[MOST_FINDINGS].line, f"and {len(found) - MOST_FINDINGS} more")]
    return {"found": found, "runs": _runs(tree)}


def _runs(tree: ast.AST) -> list[int]:
    """Every run of `RUN` nodes in the order of the text, as a number that is the same in every process.

    Winnowing's idea (Schleimer, Wilkerson, Aiken 2003) on the syntax tree: names, comments, spacing and literal values
    do not count. Docstrings are left out; attributes count by name, since they name operations.
    """
    kinds: list[str] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node, ast.expr_context):
            kinds.append(f".{node.attr}" if isinstance(node, ast.Attribute) else type(node).__name__)
        stack.extend(reversed(list(ast.iter_child_nodes(node))))
    runs: dict[int, None] = {}
    for i in range(len(kinds) - RUN + 1):
        text = " ".join(kinds[i : i + RUN])
        runs[int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest(), "big")] = None
        if len(runs) == MOST_RUNS:
            break
    return list(runs)


if __name__ == "__main__":
    main(sys.argv[1])
