"""Reads a submission's source in a child process with limits: what runs of it, what is not ordinary, its syntax."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import subprocess
import sys
from typing import NamedTuple

from labkit.labs.catalog import ROOT, find_lab
from labkit.labs.manifest import Lab
from labkit.suite.main_block import without_main_block
from labkit.suite.source_check import Finding, check_source

CPU_SECONDS = 5
WAIT_SECONDS = 120
MEMORY_BYTES = 1 << 30
MAX_FINDINGS = 20
MAX_RUNS = 20_000
RUN = 12
NOT_READ = Finding(1, "is too deep, too large or too slow to be checked")
NOT_TEXT = Finding(1, "is not UTF-8 text, and was not checked")


class Source(NamedTuple):
    """A submission as it was read.

    Attributes:
        findings: what the source check shows of `text`.
        runs: its runs of syntax, by which submissions are compared.
        text: what is run when it is graded: the file without its main block; as it is where it could not be read.
    """

    findings: list[Finding]
    runs: list[int]
    text: bytes


def read_source(source: bytes, lab: Lab, cpu_seconds: int = CPU_SECONDS) -> Source:
    """Check a submission to `lab` in a child process: a crafted text can take the parser hours, or crash it."""
    command = [sys.executable, "-P", "-m", __name__, lab.folder.name, str(cpu_seconds)]
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, cwd="/", env=environment, timeout=WAIT_SECONDS, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return Source([NOT_READ], [], source)
    found, runs, text = json.loads(done.stdout)
    findings = [Finding(line, what, tuple(tasks)) for line, what, tasks in found]
    return Source(findings, runs, source if text is None else text.encode())


def main(lab_name: str, cpu_seconds: int) -> None:
    """In the child: the text comes on standard input, what is found goes to standard output."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lab, source = find_lab(lab_name), sys.stdin.buffer.read()
    try:
        # as the worker reads the file: one line end, and no byte-order mark, of which it would skip another one
        text = source.decode().lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        cut: str | None = without_main_block(text, lab)
    except UnicodeDecodeError:
        text, cut, found = "", None, [NOT_TEXT]
    except (SyntaxError, ValueError):  # the tests report that
        text, cut, found = "", None, []
    else:
        found = check_source(cut or "", lab)
    if len(found) > MAX_FINDINGS:
        tasks = {task for finding in found for task in finding.tasks}
        rest = Finding(found[MAX_FINDINGS].line, f"and {len(found) - MAX_FINDINGS} more", tuple(sorted(tasks)))
        found[MAX_FINDINGS:] = [rest]
    json.dump([found, syntax_runs(text), cut], sys.stdout)


def syntax_runs(text: str) -> list[int]:
    """Every run of `RUN` nodes in the order of the text, as a number that is the same in every process.

    Winnowing's idea (Schleimer, Wilkerson, Aiken 2003) on the syntax tree: names, comments, spacing and literal values
    do not count. Docstrings are left out; attributes count by name, since they name operations.
    """
    try:
        stack: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    kinds: list[str] = []
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node, ast.expr_context):
            kinds.append(f".{node.attr}" if isinstance(node, ast.Attribute) else type(node).__name__)
        stack.extend(reversed(list(ast.iter_child_nodes(node))))
    runs: dict[int, None] = {}
    for i in range(len(kinds) - RUN + 1):
        run = " ".join(kinds[i : i + RUN]).encode("utf-8", "replace")
        runs[int.from_bytes(hashlib.blake2b(run, digest_size=6).digest(), "big")] = None
        if len(runs) == MAX_RUNS:
            break
    return list(runs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
