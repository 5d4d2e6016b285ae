"""Makes what was handed in something that nbgrader can grade: what is not part of an assignment is set aside.

nbgrader copies all of a submission, follows links, waits for pipes, and serves every file in the grader's browser. So a
submission's folder keeps the files of an assignment, and no file is lost: the rest moves to `set_aside/`.
"""

from __future__ import annotations

import datetime
import json
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.course.paths import NOTEBOOK, SUBMITTED, TIMESTAMP, Places, submissions
from labstaff.grader.kept import kept
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import clear_parts, write_whole
from labstaff.grader.submission import MOST_BYTES, NOTES_FILE, read_regular, read_submission

MOST_NOTEBOOK_BYTES = 24 << 20
MOST_OTHER_BYTES = 1 << 20
PUT_THERE = "put_there_when_none_was_handed_in"
NOT_HANDED_IN = f"no {NOTEBOOK} was handed in; the released one stands in its place"
ONE_DAY = datetime.timedelta(days=1)


def make_ready(course: Path, students: Collection[str] | None = None) -> list[str]:
    """Make every submission in the course one that nbgrader can grade; returns what was done, a line each.

    Args:
        students: whose; everybody's when None.
    """
    clear_parts(course / SUBMITTED, NOTEBOOK, NOTES_FILE)
    wanted = (places for places in submissions(course) if students is None or places.student in students)
    return [line for places in wanted for line in make_one_ready(places)]


def make_one_ready(places: Places) -> list[str]:
    """As `make_ready`, for one submission. It may be interrupted anywhere, and begun again."""
    name = f"{one_line(places.student)}: {places.assignment}"
    try:
        done = [f"{name}: set aside {one_line(path)}{why}" for path, why in _set_aside(places)]
        if not (places.submitted / NOTEBOOK).exists() and (places.released / NOTEBOOK).is_file():
            notebook = json.loads((places.released / NOTEBOOK).read_text(encoding="utf-8"))
            notebook["metadata"][PUT_THERE] = True
            _write(places, NOTEBOOK, json.dumps(notebook).encode())
            done.append(f"{name}: {NOT_HANDED_IN}")
        return done
    except OSError as error:
        return [f"{name}: cannot be made ready: {one_line(error)}"]


def _write(places: Places, name: str, content: bytes) -> None:
    """Put a file into a submission: written beside all of them, so that nobody takes a part of it for handed in."""
    write_whole(places.submitted / name, content, part_in=places.all_submitted)


def timestamp_flags(places: Places) -> list[str]:
    """What is odd about the time that a submission says it was handed in at."""
    content = read_regular(places.submitted / TIMESTAMP, MOST_OTHER_BYTES)
    said = None if content is None else time_of(content)
    if said is None:
        return []
    told = f"{TIMESTAMP} says {said:%Y-%m-%d %H:%M} UTC"
    made = kept(places.course).made
    if made and said < datetime.datetime.fromisoformat(made) - ONE_DAY:
        return [f"{told}, before the course was made"]
    if said > datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + ONE_DAY:
        return [f"{told}, which is still to come"]
    return []


def _set_aside(places: Places) -> Iterator[tuple[Path, str]]:
    """Move what is not part of the assignment; yields where it was, and why if that is not plain.

    What a grader should know of it is noted first, in a file that stays with the submission until it is replaced.
    """
    lab = places.lab
    moving = list(_surplus(places.submitted, lab))
    if not moving:
        return
    submission = read_submission(lab, places.submitted)
    for path, why in moving:
        if why:
            submission.flag(f"{path}{why}, set aside")
    if submission.flags:
        _write(places, NOTES_FILE, "\n".join([*submission.flags, ""]).encode("utf-8", "replace"))
    for path, why in moving:
        target = places.set_aside / path
        target.parent.mkdir(parents=True, exist_ok=True)
        n = 0
        while os.path.lexists(target):
            n += 1
            target = places.set_aside / path.with_name(f"{path.name}.{n}")
        (places.submitted / path).rename(target)
        yield path, why


def _surplus(folder: Path, lab: Lab) -> Iterator[tuple[Path, str]]:
    """What of a submission's folder is to be moved: whole folders where nothing in them is part of the assignment."""
    answer = f"{lab.module}.py"
    limits = {NOTEBOOK: MOST_NOTEBOOK_BYTES, answer: MOST_BYTES, "README.md": MOST_OTHER_BYTES}
    limits |= {TIMESTAMP: MOST_OTHER_BYTES, NOTES_FILE: MOST_OTHER_BYTES}
    for inside, wanted in (("", limits), ("src", {answer: MOST_BYTES})):
        if inside and (folder / inside).is_symlink():
            continue
        if not (folder / inside).is_dir():
            continue
        for entry in sorted(os.scandir(folder / inside), key=lambda entry: entry.name):
            path = Path(inside, entry.name)
            if path == Path("src") and entry.is_dir(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            if entry.name not in wanted or not stat.S_ISREG(status.st_mode):
                yield path, ""
            elif status.st_size > wanted[entry.name]:
                yield path, f": {status.st_size:,} bytes are too many"
            elif entry.name == TIMESTAMP and time_of(Path(entry).read_bytes()) is None:
                yield path, ": no time can be read from it"


def time_of(content: bytes) -> datetime.datetime | None:
    """The time in a timestamp.txt, in UTC, as nbgrader reads it; None where nbgrader would end the run.

    An empty file is none for nbgrader either, and does no harm: it counts as no time at all.
    """
    from dateutil import parser, tz

    try:
        text = content.decode("utf-8").strip()
        words = text.split(" ")
        if len(words) == 3:
            zone = int(words[2]) if words[2].lstrip("+-").isdigit() else tz.gettz(words[2])
            time = parser.parse(" ".join([*words[:2], "TZ"]), tzinfos={"TZ": zone})
        else:
            time = parser.parse(text)
        return time.astimezone(datetime.UTC).replace(tzinfo=None) if time.tzinfo else time
    except Exception:  # dateutil lets several kinds through, and nbgrader catches one
        return None
