"""What a class is told to fail: counted rightly, in the course's own words, on a page on which nothing acts."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser

import pytest

from labkit.labs.catalog import find_lab
from labstaff.answers.mistakes import find_mistake
from labstaff.grader.results import JudgedSubmission
from labstaff.grading.gist import Words
from labstaff.grading.what_fails import NOT_STARTED, ClassFailures, causes_of, failures_of
from labstaff.grading.what_to_teach import NOTHING_ACTS, table_lines, write_csv, write_page

LAB = find_lab("01")
FIRST, SECOND, *_ = LAB.tasks
NO_SCALE = find_mistake(LAB, "attention_without_scale")
TEST = NO_SCALE.found_by[0].split("::")[1]
UNTOUCHED = f"profiling.py:10 {NOT_STARTED}"
SCALE_IS_MISSING = f"output: off by 0.25 at [3, 1]\nThat is exactly what comes out when the scores are {NO_SCALE.says}"
NAMES = ("Zebediah", "Quux-Fitzgerald", "s1234567", "黒沢", "zeb@example.org")
ACTS = "<img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>"


def result(messages: dict[str, str], passed: tuple[str, ...] = (), status="judged") -> JudgedSubmission:
    """One submission: what its failed tests say, and which pass."""
    tests = {**dict.fromkeys(messages, "failed"), **dict.fromkeys(passed, "passed")}
    return JudgedSubmission(LAB.folder.name, "key", status, tests=tests, messages=messages)


def test_id(task, name):
    return f"{task.tests}::{name}"


test_id.__test__ = False  # type: ignore[attr-defined]
OTHER = test_id(FIRST, "test_other")
SECONDS = test_id(SECOND, "test_second")


def a_class() -> list[JudgedSubmission]:
    """Five submissions: three that began the first task, one of them with two mistakes; one untouched; one unusable."""
    scale = {test_id(FIRST, f"{TEST}[1-2]"): SCALE_IS_MISSING, test_id(FIRST, f"{TEST}[3-4]"): SCALE_IS_MISSING}
    other_numbers = {name: text.replace("0.25", "1e-07").replace("[3, 1]", "[0, 12]") for name, text in scale.items()}
    return [
        result({**scale, SECONDS: UNTOUCHED}, (OTHER,)),
        result({**other_numbers, OTHER: "shape (3, 4), expected (3, 5)", SECONDS: UNTOUCHED}),
        result({SECONDS: "expected 5"}, (*scale, OTHER)),
        result({**dict.fromkeys(scale, UNTOUCHED), OTHER: UNTOUCHED, SECONDS: UNTOUCHED}),
        result(dict.fromkeys([*scale, OTHER, SECONDS], "profiling.py line 3: invalid syntax")),
        result({}, status="refused"),
    ]


def test_who_fails_what_of_those_who_began():
    told = {each.test: each for each in failures_of(LAB, a_class())}
    assert [(name, each.failed, each.began) for name, each in told.items()] == [
        (TEST, 2, 3),
        ("test_second", 1, 1),
        ("test_other", 1, 3),
    ]
    (said,) = told[TEST].said
    assert said.count == 2, "a submission counts once, whatever its numbers and however many parameters"
    assert NO_SCALE.says in said.gist


def test_what_the_suite_takes_for_the_mistake():
    """The one thing to explain, in however many tests it was told."""
    slow = f"{FIRST.name} was still running after 10 s, last seen at profiling.py:7: Zebediah()"
    (scale, late) = causes_of(LAB, [*a_class(), result({OTHER: slow, SECONDS: UNTOUCHED})])
    assert (scale.task, scale.count, scale.began) == (FIRST.name, 2, 4)
    assert scale.told == f"the scores are {NO_SCALE.says}"
    assert scale.mistakes == (NO_SCALE.name,)
    assert (late.told, late.count, late.mistakes) == (f"{FIRST.name} was still running after # s", 1, ())


MESSAGES = {
    "off by 0.25 at [3, 1]: not divided by √d": "off by # at [#, #]: not divided by √d",
    "scale raised ValueError: Zebediah was here\nat profiling.py:7: x = Zebediah  # me": "scale raised ValueError",
    "scale was still running after 10 s, last seen at profiling.py:7: Zebediah()": "scale was still running after # s",
    "expected keys 'total_memory', found 'Zebediah', 'Fitzgerald'": "expected keys 'total_memory', found '…'",
    "Zebediah": "…",
    "scale raised KeyError: max\nsum\nat x.py:7: x\nUsual cause: K.T": "scale raised KeyError\nUsual cause: K.T",
    "Usual cause: e is raised to the slope": "Usual cause: e is raised to the slope",
    "": "…",
}


@pytest.mark.parametrize(("message", "gist"), MESSAGES.items())
def test_a_message_in_the_courses_words(message, gist):
    assert Words(LAB).gist(message) == gist


def told_of(messages: list[str]) -> ClassFailures:
    results = [result({OTHER: message}, (SECONDS,)) for message in messages]
    return ClassFailures(LAB, causes_of(LAB, results), failures_of(LAB, results), len(results))


def hostile() -> list[str]:
    quoted = [f"expected a dict, found {name!r}" for name in NAMES]
    raised = [f"standard_attention raised RuntimeError: {name} {ACTS}\nat profiling.py:7: # {name}" for name in NAMES]
    guessed = [f"off\nUsual cause: {name} {ACTS}" for name in NAMES]
    return [*quoted, *raised, *guessed, ACTS, f"=HYPERLINK({NAMES[0]})", "=1+1", "+1", "@SUM", "\t=1", "-1"]


class Elements(HTMLParser):
    """Which elements a page has, and which attributes."""

    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("message", hostile())
def test_nobody_is_named_and_nothing_acts(tmp_path, message):
    told = told_of([message])
    write_page(tmp_path / "page.html", [told])
    write_csv(tmp_path / "table.csv", [told])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    parts = [part for name in NAMES for part in re.split(r"[-@]", name)]
    for text in (page, (tmp_path / "table.csv").read_text(encoding="utf-8"), "\n".join(table_lines(told))):
        assert not [part for part in parts if part in text]
    seen = Elements()
    seen.feed(page)
    layout = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "pre", "code", "br", "meter"}
    assert seen.tags <= layout | {"table", "thead", "tbody", "tr", "th", "td"}
    assert seen.attributes <= {"charset", "class", "content", "http-equiv", "lang", "name", "value"}
    assert "default-src 'none'" in NOTHING_ACTS
    assert f'content="{NOTHING_ACTS.replace(chr(39), "&#x27;")}"' in page


def test_no_cell_is_a_formula(tmp_path):
    told = told_of(["=max", "+max", "-max", "@max", "\t=max"])
    write_csv(tmp_path / "table.csv", [told])
    rows = list(csv.reader((tmp_path / "table.csv").open(encoding="utf-8", newline="")))
    assert any(cell.startswith("'=max") for row in rows for cell in row)
    assert not [cell for row in rows for cell in row if cell.lstrip()[:1] in ("=", "+", "-", "@")]


def test_a_known_mistake_is_named_to_look_it_up(tmp_path):
    told = ClassFailures(LAB, causes_of(LAB, a_class()), failures_of(LAB, a_class()), 6, n_left_out=2)
    write_page(tmp_path / "page.html", [told])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"uv run lab mistake 01 {NO_SCALE.name}" in page
    lines = list(table_lines(told))
    assert lines[0].endswith("6 submissions; 2 are not judged as they are now: lab grade")
    assert lines[1].strip() == f"2 of 3 were told in {FIRST.name}: the scores are {NO_SCALE.says}"
    assert f"    2 of 3 fail {FIRST.name} · {TEST}" in lines
