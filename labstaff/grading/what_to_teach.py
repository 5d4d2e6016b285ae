"""Shows which tests a class fails most: as lines, as a table, and as a page that does nothing but stand there."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.grader.plain_text import cell, lines, one_line
from labstaff.grading.gist import cause
from labstaff.grading.what_fails import Cause, ClassFailures, FailedTest

MOST_LINES = 10
TITLE = "What to teach again"
ABOUT = (
    "What the suite takes for the mistakes of those who began a task, the commonest first; then each test that "
    "somebody fails. Of what they read, here stands what the course itself says, with … for words of their own and # "
    "for numbers; nobody is named."
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
    """The commonest mistakes, as far as the suite knows them, and the tests that most fail."""
    lab = told.lab
    yield f"{lab.label} · {lab.title}: {_how_many(told)}"
    for known in told.causes[:MOST_LINES]:
        yield f"{known.count:>5} of {known.began} were told in {known.task}: {known.told}"
        yield from (f"{'':11}{line}" for line in _commands(lab, known))
    if told.causes:
        yield "where most fail:"
    for each in told.failures[:MOST_LINES]:
        yield f"{each.failed:>5} of {each.began} fail {each.task} · {each.test}"
    if len(told.failures) > MOST_LINES:
        yield f"      and {len(told.failures) - MOST_LINES} more tests"


def write_csv(path: Path, told: Sequence[ClassFailures]) -> None:
    """A CSV file with a line for each test and each of its commonest messages."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["lab", "task", "test", "began", "failed", "share", "message", "read_by", "cause"])
        for each in (failure for of_lab in told for failure in of_lab.failures):
            for said in each.said:
                of_test = [each.lab.folder.name, each.task, each.test, each.began, each.failed, f"{each.share:.3f}"]
                message, why = cell(said.gist.replace("\n", " / ")), cell(cause(said.gist))
                table.writerow([*of_test, message, said.count, why])


def write_page(path: Path, told: Sequence[ClassFailures]) -> None:
    """A page of one file: no script, nothing from elsewhere, and every text as text."""
    body = [f"<h1>{TITLE}</h1>", f"<p>{ABOUT}</p>"]
    for of_lab in told:
        lab = of_lab.lab
        body.append(f"<h2>{_text(f'Lab {lab.number}: {lab.title}')}</h2>")
        body.append(f"<p>{_text(_how_many(of_lab))}. To read again: {_text(', '.join(lab.read))}.</p>")
        if of_lab.causes:
            rows = (_row(each.count, each.began, each.task, _cause(lab, each)) for each in of_lab.causes)
            body += _table(("told", "task", "what the suite takes for the mistake"), rows)
        if of_lab.failures:
            body += _table(("fail", "task and test", "what they read"), map(_of_test, of_lab.failures))
        else:
            body.append("<p>Nobody fails a test.</p>")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_text(NOTHING_ACTS)}">'
        f'<meta name="viewport" content="width=device-width"><title>{TITLE}</title><style>{STYLE}</style>'
    )
    page = "\n".join([f'<!doctype html><html lang="en"><head>{head}</head><body>', *body, "</body></html>", ""])
    path.write_text(page, encoding="utf-8")


def _how_many(told: ClassFailures) -> str:
    left_out = f"; {told.n_left_out} are not judged as they are now: lab grade" if told.n_left_out else ""
    return f"{told.n_judged} submissions{left_out}"


def _table(headings: tuple[str, ...], rows: Iterable[str]) -> Iterator[str]:
    cells = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
    yield f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>'
    yield from rows
    yield "</tbody></table></div>"


def _of_test(each: FailedTest) -> str:
    said = "".join(f"<pre>{_text(f'{said.count} × {said.gist}')}</pre>" for said in each.said)
    return _row(each.failed, each.began, each.task, said, each.test)


def _cause(lab: Lab, known: Cause) -> str:
    commands = "".join(f"<br><code>{_text(line)}</code>" for line in _commands(lab, known))
    return f"{_text(known.told)}{commands}"


def _row(count: int, began: int, task: str, markup: str, test: str = "") -> str:
    """A line of a table; `markup` is HTML already, all else is text."""
    share = count / began if began else 0.0
    of_all = f'<meter value="{share:.3f}">{share:.0%}</meter><br>{count} of {began}'
    name = f"<br><code>{_text(test)}</code>" if test else ""
    return f"<tr><td>{of_all}</td><td>{_text(task)}{name}</td><td>{markup}</td></tr>"


def _commands(lab: Lab, known: Cause) -> Iterator[str]:
    """How to see a known mistake of which the suite says the same; where several do, they say little."""
    if len(known.mistakes) == 1:
        yield f"uv run lab mistake {lab.number} {one_line(known.mistakes[0])}"


def _text(text: str) -> str:
    return html.escape(lines(text))
