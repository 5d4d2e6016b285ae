"""What a file's text says of it, without running it: in a child with limits, since a text can take hours to parse."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-S", "-m", __name__, module]
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, env=environment, cwd="/", timeout=WAIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ExamineFailed(f"{module}.py was not parsed within {WAIT_SECONDS} s") from None
    if done.returncode == -signal.SIGKILL:
        raise ExamineFailed(f"the process that parses {module}.py was killed")
    if done.returncode:
        return Examined([], [], f"{module}.py is too deep, too large or too slow to parse: it was not run")
    said = json.loads(done.stdout)
    return Examined([f"{module}.py line {line}: {what}" for line, what in said["found"]], said["runs"])


def main(module: str) -> None:
    """The child's life: the text comes on the standard input, what is found goes to the standard output."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))  # at the second, SIGKILL
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tree = ast.parse(sys.stdin.buffer.read().decode())  # as it is judged, whatever encoding its text names
    except (SyntaxError, ValueError):  # the suite's run says so, with the line
        print(json.dumps({"found": [], "runs": []}))
        return
    found = [*policy.breaches(tree, frozenset({module})), *policy.oddities(tree)]
    if len(found) > MOST_FINDINGS:
        found[MOST_FINDINGS:] = [policy.Finding(found[MOST_FINDINGS].line, f"and {len(found) - MOST_FINDINGS} more")]
    print(json.dumps({"found": found, "runs": _runs(tree)}))


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
