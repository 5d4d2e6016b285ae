"""Writes an exam's paper and key as Markdown, as HTML that prints and, where Chromium is there, as PDF.

`asked.json` in the same folder names the questions of all its papers; no later paper repeats one. A new year is a new
folder.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from labkit.labs.manifest import Lab
from labstaff.authoring.exam import ExamError, Exercise, choose

ASKED = "asked.json"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PRINT_SECONDS = 120
FAILED = "  ✗ "
"""Begins a failing test in a recorded message."""
POINTS = 6
"""Of a question: two for each of its three parts."""
PARTS = (
    "Which line is wrong, or which two? Write what should be there.",
    "Give an input for which it shows.",
    "What comes out for that input, and what should?",
)
RULES = """\
{n_questions} questions, {points} points each: {total} points. Each listing is the code of one task and what it uses of
its module, without comments and imports. Exactly one place is wrong: one line, or two that follow each other. The
docstrings are right. Small inputs are best, and words are enough where numbers would be long: "any row with two equal
maxima gives half of the weight".
"""
KEY_RULES = """\
Two points for each part. The message is what the suite prints for the code as it stands in the paper. Any other input
for which the mistake shows is as good as the suite's, and so is a change of another line that mends the code.
"""
STYLE = """\
@page { size: A4; margin: 15mm 14mm; }
body { font: 10.5pt/1.4 sans-serif; color: #000; background: #fff; max-width: 190mm; margin: 1em auto; }
h1 { font-size: 16pt; } h2 { font-size: 12.5pt; break-after: avoid; }
pre { font: 7.6pt/1.3 monospace; white-space: pre-wrap; background: #f4f4f4; padding: 2mm; }
.paper h2:not(:first-of-type) { break-before: page; }
.paper li { margin-bottom: 14mm; break-inside: avoid; }
"""
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
{style}</style></head><body class="{kind}">
{body}</body></html>
"""


def write_exam(labs: Sequence[Lab], out: Path, seed: int, n_questions: int) -> tuple[list[Path], str]:
    """Write a paper and its key to the folder `out`, as `paper_SEED` and `key_SEED`.

    Args:
        labs: what the paper is about.
        out: a folder for all papers of a year; made if it is not there.
        seed: chooses the questions, and is the paper's name.
        n_questions: how many.

    Returns:
        the files written, and why there is no PDF, or "".

    Raises:
        ExamError: the folder has a paper of this seed, `asked.json` is damaged, or there are too few questions.
        MistakeError: a mistake is malformed.
    """
    asked = _asked(out)
    if str(seed) in asked:
        raise ExamError(f"{out} has a paper {seed} already: take another seed, or another folder for a new year")
    exercises = choose(labs, n_questions, seed, {name for names in asked.values() for name in names})
    out.mkdir(parents=True, exist_ok=True)
    asked[str(seed)] = [each.name for each in exercises]
    (out / ASKED).write_bytes(msgspec.json.format(msgspec.json.encode(asked), indent=1) + b"\n")
    files, problem = [out / ASKED], ""
    for kind, text in (("paper", paper(exercises, seed)), ("key", key(exercises, seed))):
        markdown, html = out / f"{kind}_{seed}.md", out / f"{kind}_{seed}.html"
        markdown.write_text(text, encoding="utf-8")
        html.write_text(_html(text, kind), encoding="utf-8")
        files += [markdown, html]
        problem = print_pdf(html, html.with_suffix(".pdf"))
        if not problem:
            files.append(html.with_suffix(".pdf"))
    return files, problem


def paper(exercises: Sequence[Exercise], seed: int) -> str:
    """The questions as Markdown."""
    rules = RULES.format(n_questions=len(exercises), points=POINTS, total=POINTS * len(exercises))
    lines = [f"# Exam paper {seed}", "", rules]
    for number, exercise in enumerate(exercises, 1):
        lines += [*_heading(number, exercise), *_code(_numbered(exercise.listing))]
        if exercise.not_shown:
            names = ", ".join(f"`{name}`" for name in exercise.not_shown)
            lines += [f"Not shown, and right: the lab's {names}.", ""]
        lines += [f"{letter}. {part}" for letter, part in enumerate(PARTS, 1)]
        lines.append("")
    return "\n".join(lines)


def key(exercises: Sequence[Exercise], seed: int) -> str:
    """The answers as Markdown."""
    lines = [f"# Key to exam paper {seed}", "", KEY_RULES]
    for number, exercise in enumerate(exercises, 1):
        mistake = exercise.mistake
        lines += [*_heading(number, exercise), mistake.what, ""]
        lines += ["1. Wrong:", "", *_code(_numbered(exercise.listing, exercise.wrong))]
        if exercise.right:
            lines += ["   Right:", "", *_code(exercise.right)]
        else:
            lines += ["   Right: without it.", ""]
        found, came_out = _shown_by(exercise)
        lines += [f"2. The suite's test `{found}`:", "", *_code(_test_source(exercise))]
        lines += ["3. Its message:", "", *_code(came_out)]
        lines += [f"(`uv run lab mistake {mistake.lab.number} {mistake.name}`)", ""]
    return "\n".join(lines)


def print_pdf(html: Path, pdf: Path) -> str:
    """Print a page to a PDF file with Chromium; returns why not, or ""."""
    browser = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if browser is None:
        return "there is no Chromium: print the HTML from a browser"
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={pdf.resolve()}", html.resolve().as_uri()]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=PRINT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"Chromium printed nothing in {PRINT_SECONDS} s: print the HTML from a browser"
    if ended.returncode or not pdf.is_file():
        return "Chromium failed: print the HTML from a browser"
    return ""


def _asked(out: Path) -> dict[str, list[str]]:
    file = out / ASKED
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]]) if file.is_file() else {}
    except msgspec.DecodeError as error:
        raise ExamError(f"{file}: {error}") from None


def _heading(number: int, exercise: Exercise) -> list[str]:
    lab = exercise.mistake.lab
    return [f"## {number}. `{exercise.mistake.task}` (Lab {lab.number}, {lab.title})", ""]


def _code(lines: Sequence[str]) -> list[str]:
    return ["````text", *lines, "````", ""]


def _numbered(lines: Sequence[str], only: Sequence[int] = ()) -> list[str]:
    return [f"{at:3}  {line}".rstrip() for at, line in enumerate(lines, 1) if not only or at in only]


def _shown_by(exercise: Exercise) -> tuple[str, list[str]]:
    """The first failing test with its parameters, and its message."""
    assert exercise.mistake.record
    message = exercise.mistake.record.message
    failures = [at for at, line in enumerate(message) if line.startswith(FAILED)]
    first = failures[0]
    end = failures[1] if len(failures) > 1 else len(message)
    return message[first].removeprefix(FAILED), [line.strip() for line in message[first + 1 : end]]


def _test_source(exercise: Exercise) -> list[str]:
    """The lines of the test that finds the mistake, with its decorators: there are its inputs.

    Only its name where the test's class inherits it, or is given it.
    """
    mistake = exercise.mistake
    assert mistake.record
    test_class, _, test = mistake.record.found_by.partition("::")
    source = mistake.lab.suite_file.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == test_class:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == test:
                    first = min([method.lineno, *(each.lineno for each in method.decorator_list)])
                    lines = source.split("\n")[first - 1 : method.end_lineno]
                    return [line.removeprefix("    ") for line in lines]
    return [f"{mistake.record.found_by}, in {mistake.lab.suite_file.name}"]


def _html(markdown: str, kind: str) -> str:
    from markdown_it import MarkdownIt

    title = markdown.partition("\n")[0].removeprefix("# ")
    return PAGE.format(title=title, style=STYLE, kind=kind, body=MarkdownIt("commonmark").render(markdown))
