"""A roster: what is read of it, and what the gradebook then has."""

from __future__ import annotations

import datetime
import shutil
from types import SimpleNamespace

import pytest
from nbgrader.api import Gradebook

from labstaff.course.collect import ByRoster
from labstaff.course.handed_in import missing_lines
from labstaff.course.nbgrader import opened_gradebook
from labstaff.course.penalties import update_penalties
from labstaff.course.roster import Entry, RosterError, apply_roster, read_roster
from tests.student import LAB

NAME = LAB.folder.name
DUE = "2027-03-01 23:59:00 UTC"


@pytest.fixture(scope="module")
def made_course(tmp_path_factory):
    """A gradebook with one assignment, which has no due date, and a student."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "nbgrader_config.py").write_text("c = get_config()\n")
    (folder / "submitted").mkdir()
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        gradebook.add_assignment(NAME)
        gradebook.add_student("zoe")
    return folder


@pytest.fixture
def course(made_course, tmp_path):
    """A course that the test may change."""
    return shutil.copytree(made_course, tmp_path / "course")


def written(folder, text):
    file = folder / "students.csv"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'id,name,email,extra time\nann,Ann Lee Ash,a@x,+50 %\nbob,"Bee, Bob",b@x,3 days\ncec,,,\n',
            [
                Entry("ann", {"first_name": "Ann Lee", "last_name": "Ash", "email": "a@x"}, 7.0),
                Entry("bob", {"first_name": "Bob", "last_name": "Bee", "email": "b@x"}, 3.0),
                Entry("cec", {"first_name": "", "last_name": "", "email": ""}),
            ],
        ),
        (
            'Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"Ash, Ann",101,s1,a@x,A\n',
            [Entry("101", {"first_name": "Ann", "last_name": "Ash", "lms_user_id": "a@x"})],
        ),
        (
            "\ufeffFirst name;Last name;ID number;Email address\nAnn;Ash;77;a@x\n",
            [Entry("77", {"first_name": "Ann", "last_name": "Ash", "email": "a@x"})],
        ),
        (
            "First name,Last name,Email address\nAnn,Ash,a@x\n",
            [Entry("a@x", {"first_name": "Ann", "last_name": "Ash", "email": "a@x"})],
        ),
    ],
    ids=["plain", "canvas", "moodle", "moodle without ids"],
)
def test_rosters_of_platforms_are_read(tmp_path, text, expected):
    assert read_roster(written(tmp_path, text), lab_days=14) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nAnn\n", "expected a column id or email in the first line, found 'name'"),
        ("id\nann\nann\n", "line 3: the id 'ann' is there twice"),
        ("id,name\n,Ann\n", "line 2: a student without an id"),
        ("id\n../ann\n", "line 2: the id '../ann' cannot be a folder's name"),
        ("id,extra time\nann,more\n", "line 2: extra time: expected “+50 %” or days, found 'more'"),
        ("id,extra time\nann,+50 %\n", "add --lab-days 14"),
    ],
)
def test_a_roster_that_cannot_be_used_names_the_line(tmp_path, text, message):
    with pytest.raises(RosterError) as caught:
        read_roster(written(tmp_path, text))
    assert message in str(caught.value)


def test_names_arrive_and_extra_time_waits_for_the_due_date(course):
    roster = [Entry("ann", {"first_name": "Ann", "email": "a@x"}, 7.0), Entry("bob")]
    printed: list[str] = []
    apply_roster(course, roster, printed.append)
    assert printed[0] == "roster: 2 students, 2 of them new"
    assert printed[1].startswith("not in the roster, and still in the gradebook: zoe: ")
    assert printed[2].startswith(f"extra time waits for the due dates of {NAME}: ")
    update_penalties(course)
    with opened_gradebook(course) as gradebook:
        assert (gradebook.find_student("ann").first_name, gradebook.find_student("ann").email) == ("Ann", "a@x")
        gradebook.update_or_create_assignment(NAME, duedate=DUE)
    printed.clear()
    apply_roster(course, roster, printed.append)
    assert printed[:2] == ["roster: 2 students, 0 of them new", f"ann: {NAME}: due 7 days later"]


def test_an_extension_that_a_person_granted_stays(course):
    with opened_gradebook(course) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate=DUE)
    apply_roster(course, [Entry("ann", {}, 7.0)], lambda _line: None)
    with opened_gradebook(course) as gradebook:
        gradebook.grant_extension(NAME, "ann", days=9)
    printed: list[str] = []
    apply_roster(course, [Entry("ann", {}, 7.0)], printed.append)
    assert f"ann: {NAME}: its extension of 9 days stays; the roster says 7" in printed
    with opened_gradebook(course) as gradebook:
        assert gradebook.find_submission(NAME, "ann").extension == datetime.timedelta(days=9)


def test_who_has_handed_in_nothing_is_listed(course):
    apply_roster(course, [Entry("ann"), Entry("bob")], lambda _line: None)
    with opened_gradebook(course) as gradebook:
        assert missing_lines(course, gradebook, [LAB]) == [], "nobody has: the lab has not begun"
    (course / "submitted" / "ann" / NAME / "src").mkdir(parents=True)
    with opened_gradebook(course) as gradebook:
        lines = missing_lines(course, gradebook, [LAB])
    assert lines == [f"nothing handed in: {NAME}: 2 of 3 students: bob, zoe"]


@pytest.mark.parametrize(
    ("collected", "expected"),
    [
        ("Ann Ash_101", "77"),
        ("Ash Ann_9", "77"),
        ("OBrien Cec_102", "88"),
        ("Bob Bee_103", "Bob Bee_103"),
        ("Dan_104", "Dan_104"),
        ("105", "105"),
    ],
)
def test_moodles_names_become_the_rosters_ids(course, collected, expected):
    roster = [("77", "Ann", "Ash"), ("88", "Cec", "O'Brien"), ("1", "Bob", "Bee"), ("2", "Bob", "Bee")]
    entries = [Entry(key, {"first_name": first, "last_name": last}) for key, first, last in roster]
    apply_roster(course, entries, lambda _line: None)
    plugin = ByRoster(named_regexp=r"(?P<student_id>.+)__(?P<file_id>\w+)\.py", valid_ext=[".py"])
    plugin.parent = None
    app = SimpleNamespace(coursedir=SimpleNamespace(db_url=f"sqlite:///{course / 'gradebook.db'}"))
    plugin.__class__ = type("Plugin", (ByRoster,), {"parent": app})
    assert plugin.collect(f"{collected}__profiling.py")["student_id"] == expected
