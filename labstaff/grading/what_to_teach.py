"""Shows which tests a class fails most: as lines, as a table, and as a page that does nothing but stand there."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.grading.what_fails import ClassFailures, Said
from labstaff.judge.plain_text import cell, lines, one_line

MOST_LINES = 10
TITLE = "What to teach again"
ABOUT = (
    "Each test that somebody fails, of those who began its task, the one that most fail first. Of what they read, here "
    "stands what the course itself says, with … for words of their own and # for numbers; nobody is named."
)
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .4rem .8rem .4rem 0; }
th, td { text-align: left; vertical-align: top; }
td:first-child { white-space: nowrap; }
meter { width: 6rem; }
pre { margin: 0 0 .4rem; white-space: pre-wrap; }
"""
NOTHING_ACTS = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def table_lines(told: ClassFailures) -> Iterator[str]:
    """The tests that most fail, each with the commonest thing that was said."""
    lab = told.lab
    yield f"{lab.label} · {lab.title}: {_how_many(told)}"
    for each in told.failures[:MOST_LINES]:
        yield f"{each.failed:>5} of {each.began} fail {each.task} · {each.test}"
        for said in each.said[:1]:
            yield f"        {said.count} × {said.gist.splitlines()[0]}"
            yield from (f"        {line}" for line in _commands(lab, said))
    if len(told.failures) > MOST_LINES:
        yield f"  and {len(told.failures) - MOST_LINES} more tests"


def write_csv(path: Path, told: Sequence[ClassFailures]) -> None:
    """A CSV file with a line for each test and each of its commonest messages."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["lab", "task", "test", "began", "failed", "share", "message", "read_by", "mistakes"])
        for each in (failure for of_lab in told for failure in of_lab.failures):
            for said in each.said:
                of_test = [each.lab.folder.name, each.task, each.test, each.began, each.failed, f"{each.share:.3f}"]
                gist = cell(said.gist.replace("\n", " / "))
                table.writerow([*of_test, gist, said.count, " ".join(said.mistakes)])


def write_page(path: Path, told: Sequence[ClassFailures]) -> None:
    """A page of one file: no script, nothing from elsewhere, and every text as text."""
    body = [f"<h1>{TITLE}</h1>", f"<p>{ABOUT}</p>"]
    for of_lab in told:
        lab = of_lab.lab
        body.append(f"<h2>{_text(f'Lab {lab.number}: {lab.title}')}</h2>")
        body.append(f"<p>{_text(_how_many(of_lab))}. To read again: {_text(', '.join(lab.read))}.</p>")
        body += _table(of_lab) if of_lab.failures else ["<p>Nobody fails a test.</p>"]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_text(NOTHING_ACTS)}">'
        f'<meta name="viewport" content="width=device-width"><title>{TITLE}</title><style>{STYLE}</style>'
    )
    page = "\n".join([f'<!doctype html><html lang="en"><head>{head}</head><body>', *body, "</body></html>", ""])
    path.write_text(page, encoding="utf-8")


def _how_many(told: ClassFailures) -> str:
    left_out = f"; {told.n_left_out} are not judged as they are now: lab grade" if told.n_left_out else ""
    return f"{told.n_judged} submissions{left_out}"


def _table(told: ClassFailures) -> Iterator[str]:
    yield '<div class="wide"><table><thead><tr><th>fail</th><th>task and test</th><th>what they read</th></tr></thead>'
    yield "<tbody>"
    for each in told.failures:
        share = f'<meter value="{each.share:.3f}">{each.share:.0%}</meter><br>{each.failed} of {each.began}'
        test = f"{_text(each.task)}<br><code>{_text(each.test)}</code>"
        said = "".join(_said(told.lab, said) for said in each.said)
        yield f"<tr><td>{share}</td><td>{test}</td><td>{said}</td></tr>"
    yield "</tbody></table></div>"


def _said(lab: Lab, said: Said) -> str:
    commands = "".join(f"<p><code>{_text(line)}</code></p>" for line in _commands(lab, said))
    return f"<pre>{_text(f'{said.count} × {said.gist}')}</pre>{commands}"


def _commands(lab: Lab, said: Said) -> Iterator[str]:
    """How to see a known mistake of which the suite says the same; where several do, they say little."""
    if len(said.mistakes) == 1:
        yield f"uv run lab mistake {lab.number} {one_line(said.mistakes[0])}"


def _text(text: str) -> str:
    return html.escape(lines(text))
