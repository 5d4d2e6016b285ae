"""Registers, stack and shared memory of a kernel, from NVIDIA's assembler: it reads PTX, and needs no GPU.

The PTX may come from a submission: the assembler sees that text and, where bubblewrap is there, no other file.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from labkit.kernels.bubblewrap import bwrap_path
from labkit.meters.kernels.cache import made_once

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Shared memory that one thread block may ask for, by architecture (CUDA C++ Programming Guide, compute capabilities).
"""

MAX_REGISTERS = 255
"""32-bit registers that a thread can have, on both."""

TARGETS = {80: "sm_80", 90: "sm_90a"}
SECONDS = 60
MEMORY_BYTES = 4 << 30
PRODUCTS = re.compile(r"^\s*(?:@\S+\s+)?((?:mma\.sync|wgmma\.mma_async)\.\S+)", re.MULTILINE)


class AssemblerMissing(RuntimeError):
    """ptxas is missing or does not work; the message is a sentence."""


class Resources(NamedTuple):
    """Per thread: `registers`, and bytes of `stack` in global memory for what did not fit into them.

    `shared` bytes are the thread block's. `products` are the instructions of tensor cores, and `tf32` those of them
    that round float32 to 10 bits of mantissa first.
    """

    registers: int
    stack: int
    shared: int
    products: int
    tf32: int

    def fits(self, arch: int) -> bool:
        """Whether a thread block fits a multiprocessor of sm_`arch`."""
        return self.shared <= SHARED_BYTES[arch]


def resources(ptx: str, shared: int, arch: int) -> Resources:
    """The resources of `ptx` for sm_`arch`; `shared` is the shared memory that its launch requests.

    Raises:
        AssemblerMissing: there is no assembler.
        ValueError: it refuses the text; the message is its first complaint.
    """
    report = assembled(ptx, arch)
    stack = re.search(r"(\d+) bytes stack frame", report)
    registers = re.search(r"Used (\d+) registers", report)
    if stack is None or registers is None:
        raise AssemblerMissing("the report of ptxas has an unknown form")
    own = re.search(r"(\d+) bytes smem", report)
    products = PRODUCTS.findall(ptx)
    return Resources(
        registers=int(registers[1]),
        stack=int(stack[1]),
        shared=shared + (int(own[1]) if own else 0),
        products=len(products),
        tf32=sum(".tf32" in each for each in products),
    )


def assembled(ptx: str, arch: int) -> str:
    """The report of `ptxas -v` on `ptx`. Raises as `resources`."""
    return made_once(f"ptxas {TARGETS[arch]}\n{ptx}", lambda: _report(ptx, arch))


def _report(ptx: str, arch: int) -> str:
    ptxas = assembler()
    with tempfile.TemporaryDirectory(prefix="ptx-") as folder:
        text = Path(folder, "kernel.ptx")
        text.write_text(ptx, encoding="utf-8")
        options = ["-v", f"--gpu-name={TARGETS[arch]}", "-o", "/dev/null"]
        command = [*_sandbox(ptxas, text), str(ptxas), *options, str(text)]
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=_bounded)
    if run.returncode:
        lines = (run.stdout + run.stderr).splitlines()
        errors = [line for line in lines if re.search(r"\berror\b", line)]
        first = [*errors, *lines, f"it ended with {run.returncode}"][0]
        raise ValueError(f"ptxas refuses the kernel: {first.replace(str(text), 'the PTX')}")
    return run.stdout + run.stderr


@functools.cache
def assembler() -> Path:
    """The assembler that comes with Triton, which is not imported. Raises `AssemblerMissing`."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        raise AssemblerMissing("Triton is not installed here: it comes with torch for Linux, and includes ptxas")
    found = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not found.exists():
        raise AssemblerMissing("this Triton has no ptxas")
    return found


@functools.cache
def _bwrap_works() -> bool:
    """Whether bubblewrap is installed and works."""
    if (bwrap := bwrap_path()) is None:
        return False
    tried = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--", "/usr/bin/true"]
    return subprocess.run(tried, capture_output=True).returncode == 0


def _sandbox(ptxas: Path, text: Path) -> list[str]:
    """The first words of the command: bubblewrap for the assembler, with the system's libraries and the PTX."""
    bwrap = bwrap_path()
    if bwrap is None or not _bwrap_works():
        return []
    libraries = map(Path, ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache"))
    shown = [str(path) for path in (*libraries, ptxas, text) if path.exists()]
    sandbox = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    sandbox += ["--tmpfs", "/tmp", "--dev", "/dev"]  # before the rest: an environment may be in /tmp
    return [*sandbox, *(part for path in shown for part in ("--ro-bind", path, path)), "--"]


def _bounded() -> None:
    import resource  # not on Windows, where nothing gets here

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
