"""Draws the README's picture of a lab: red with a cause, green, the model speaks, the review; all from real runs.

    uv run python -m labstaff.loop_picture

It runs each command in a copy of the tree, and keeps what it printed as an SVG.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.labs.manifest import Lab
from labstaff.authoring.mistakes import find_mistake

FILE = ROOT / "docs" / "loop.svg"
LAB, TASK, MISTAKE = "05", "flash_forward", "forward_alpha_upside_down"
WIDTH = 104
REVIEW = """import torch
from flash_attention import flash_forward


def test_flash_forward():
    Q, K, V = torch.randn(3, 2, 150, 8)
    for causal in (False, True):
        want = torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=causal)
        assert torch.allclose(flash_forward(Q, K, V, causal=causal)[0], want, atol=1e-5)
"""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich's picture would load two fonts from elsewhere; any monospaced font serves."""
COPIED = ("labkit", "labs", "solutions", "pyproject.toml")
QUESTION = "Why is the sky blue?"


def steps(folder: Path) -> list[tuple[str, str]]:
    """The commands and what each prints, with its colours, in a copy of the tree in `folder`."""
    for name in COPIED:
        target = folder / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", ".lab"))
        else:
            shutil.copyfile(ROOT / name, target)
    lab = find_lab(LAB, folder)
    shown = [*_checks(lab, folder), _shown(folder, "chat", LAB, QUESTION)]
    (lab.folder / "review.py").write_text(REVIEW, encoding="utf-8")
    return [*shown, _shown(folder, "review", LAB, TASK)]


def main() -> None:
    """Draw the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        for command, output in steps(Path(name)):
            console.print(Text.assemble(("$ ", "dim"), (command, "bold cyan")))
            console.print(Text.from_ansi(output.strip("\n")))
            console.print()
    FILE.write_text(FONTS.sub("", console.export_svg(title="uv run lab", theme=MONOKAI)), encoding="utf-8")
    print(FILE.relative_to(ROOT))


def _checks(lab: Lab, folder: Path) -> list[tuple[str, str]]:
    """`lab check` with one mistake, and without it."""
    shown = []
    for text in (find_mistake(lab, MISTAKE).source(), solution_file(lab).read_text(encoding="utf-8")):
        lab.student_file.write_text(text, encoding="utf-8")
        shown.append(_shown(folder, "check", LAB, TASK, "-x"))
    return shown


def _shown(folder: Path, *arguments: str) -> tuple[str, str]:
    """A command of `lab`, as it is typed, and what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-P", "-m", "labkit.commands.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    words = [f'"{word}"' if " " in word else word for word in arguments]
    return " ".join(["uv run lab", *words]), done.stdout


if __name__ == "__main__":
    main()
