"""Chapter 10's whole kernel, as printed: it is right, stays within its tensors and moves the bytes of the formula."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT

CHAPTER = (ROOT / "docs" / "10_triton_kernel.md").read_text(encoding="utf-8")
LISTING = re.compile(r"^```python\n(import torch\n.*?def attend\(.*?)^```", re.DOTALL | re.MULTILINE)
RUN = """
import json
import torch
from labkit.meters.kernels.calls import kernel_call
from listing import attend

found = []
for n, d in ((150, 32), (64, 16), (1, 32)):
    Q, K, V = torch.randn(3, n, d, generator=torch.Generator().manual_seed(n)).half()
    O, seen = kernel_call(attend, {"Q": Q, "K": K, "V": V})
    q, k, v = (x.double() for x in (Q, K, V))
    error = (O.double() - torch.softmax(q @ k.T / d**0.5, -1) @ v).abs().max()
    found.append({"n": n, "d": d, "error": float(error), **seen})
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_printed_kernel(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for Linux only")
    (listing,) = LISTING.findall(CHAPTER)
    (tmp_path / "listing.py").write_text(listing, encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ran = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for each in json.loads(ran.stdout):
        n, d = each["n"], each["d"]
        assert each["error"] < 2e-3, each
        assert each["problems"] == [], each
        programs = -(-n // 64)
        assert each["loaded"] == {"Q": 2 * n * d, "K": 2 * programs * n * d, "V": 2 * programs * n * d}
        assert sum(each["stored"].values()) == 2 * n * d
        assert each["outside_kernels"] == []
