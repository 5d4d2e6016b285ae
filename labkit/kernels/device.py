"""Calls a function of a lab's module on a CUDA device, in a separate process, where kernels are compiled.

`@triton.jit` decides between the two when it runs, and in the process of a suite it has decided.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import labkit
from labkit.meters.kernels.adapter import SWITCH

SECONDS = 600
ROOT = Path(labkit.__file__).parents[1]


class DeviceFailed(RuntimeError):
    """The call ended in an error on the device; the message is its last lines."""


def on_device(file: Path, function: str, tensors: Sequence[Any], *more: Any) -> tuple[Any, ...]:
    """The result on the CPU of `function` of `file` for `tensors`, which are moved to the device, and `more`.

    Raises:
        DeviceFailed: it ended in an error.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="device-") as folder:
        given, made = Path(folder, "given.pt"), Path(folder, "made.pt")
        torch.save({"tensors": list(tensors), "more": list(more)}, given)
        run = subprocess.run(
            [sys.executable, "-P", "-m", "labkit.kernels.device", str(file), function, str(given), str(made)],
            env={**os.environ, SWITCH: "0", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if run.returncode or not made.exists():
            raise DeviceFailed("\n".join(run.stderr.strip().splitlines()[-4:]) or f"it ended with {run.returncode}")
        return tuple(torch.load(made))


def _main(file: str, function: str, given: str, made: str) -> None:
    import torch

    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = torch.load(given)
    result = getattr(module, function)(*(x.to("cuda") for x in asked["tensors"]), *asked["more"])
    torch.cuda.synchronize()
    torch.save([x.cpu() for x in (result if isinstance(result, tuple) else (result,))], made)


if __name__ == "__main__":
    _main(*sys.argv[1:])
