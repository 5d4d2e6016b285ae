"""Grades a course in processes that may be killed: nbgrader is imported once, and the judge is one that needs no time.

`python -m tests.labstaff.course.recording kill COURSE N SEED` changes a submission and has its grader killed, N times,
then grades once more; `together COURSE` has two graders work on the course at the same time.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from nbgrader.apps.nbgraderapp import NbGraderApp

import labstaff.course.grade as grading
import labstaff.course.nbgrader_process as nbgrader_process
import labstaff.course.recorder as recorder
from labstaff.course import suite_outputs  # noqa: F401 — imported before the processes are forked
from labstaff.course.grade import grade
from labstaff.judge.judging import Judge
from tests.labstaff.course.own_word import LAB, answer, answer_file, judge_by_its_word

WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "shutil.copyfile", "shutil.rmtree"}


class ForkedNbgrader:
    """`labstaff.course.nbgrader_process.Nbgrader` without its import: each command is forked from this process."""

    def __call__(self, course, *arguments):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.chdir(course)
            os._exit(nbgrader_process._run(NbGraderApp, list(arguments)))
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
            output = pipe.read()
        return nbgrader_process.Done(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        pass


class Moment:
    """The n-th time that a process, or one it has started, changes something on the disk: then the end comes."""

    def __init__(self, n: int, end: Callable[[], None]) -> None:
        self.n, self.end = n, end
        self.count = mmap.mmap(-1, 8)

    def __call__(self, event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in WRITES:
            now = int.from_bytes(self.count[:8], "little") + 1
            self.count[:8] = now.to_bytes(8, "little")
            if now == self.n:
                self.end()


def start(course: Path, moment: Moment | None = None) -> int:
    """Begin to grade in a process of its own, in a group of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    if moment:
        sys.addaudithook(moment)
    said: list[str] = []
    status = grade(course / "submitted", [LAB], unsafe=True, say=said.append)
    (course / "said.txt").write_text("\n".join(said))
    os._exit(status)


def ended(child: int) -> int:
    """How it ended: an exit status, or a signal's number below 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(course: Path, n_kills: int, seed: int) -> None:
    """Change a submission, have whoever grades it killed, and so on; then grade undisturbed."""
    random_ = random.Random(seed)
    recorder.LEAST_AT_ONCE = 1  # a batch is begun while others are judged
    students = sorted(path.name for path in (course / "submitted").iterdir())
    n_killed, most = 0, 120
    for i in range(n_kills):
        for student in random_.sample(students, random_.choice((1, 2))):
            text = f"{answer(random_.randrange(1, 20))}# {i}\n"
            answer_file(course, student).write_text(text, encoding="utf-8")
        end = random_.choice((lambda: os.killpg(0, signal.SIGKILL), lambda: os.kill(os.getpid(), signal.SIGKILL)))
        n_killed += ended(start(course, Moment(random_.randrange(1, most), end))) != 0
    print(f"killed {n_killed} of {n_kills} times")
    print(f"at last {ended(start(course))}")


def together(course: Path) -> None:
    """Two graders at once."""
    print([ended(child) for child in [start(course), start(course)]])


if __name__ == "__main__":
    Judge.judge = judge_by_its_word  # type: ignore[method-assign]
    grading.Nbgrader = ForkedNbgrader  # type: ignore[misc, assignment]
    what, folder, *numbers = sys.argv[1:]
    {"kill": kill, "together": together, "once": lambda course: print(ended(start(course)))}[what](
        Path(folder).resolve(), *map(int, numbers)
    )
