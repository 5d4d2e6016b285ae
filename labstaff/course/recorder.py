"""Has nbgrader record what was judged while other submissions still are: a batch at a time, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.record import Recorded, record
from labstaff.grading.many import Outcome

LEAST_AT_ONCE = 4
"""How many submissions of a lab are worth a command of nbgrader's before the last has been judged.

A command costs about as much as one submission more. Whoever is left when all are judged is waited for.
"""


class Recorder:
    """Told of each outcome as it comes (`judged`), and of all of them at the end (`finish`).

    Each student is in one batch, and each batch is a `record` of its own: to be killed between two is as to be killed
    before the second. A body that ends with an exception ends nbgrader too, in the middle of a batch.

    Args:
        course: the folder of nbgrader's course.
        start: makes what runs its commands, when the first outcome is there; it is closed at the end.
        force, say: as in `record`.
    """

    def __init__(
        self,
        course: Path,
        start: Callable[[], AbstractContextManager[Nbgrader]] = Nbgrader,
        *,
        force: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._course, self._start, self._force, self._say = course, start, force, say
        self._started = ExitStack()
        self._nbgrader: Nbgrader | None = None
        self._waiting: dict[Lab, set[str]] = {}
        self._done: dict[Lab, Recorded] = {}
        self._begun: dict[Lab, set[str]] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def judged(self, outcome: Outcome) -> None:
        """Have it recorded sooner or later, if it was judged now."""
        self._nbgrader = self._nbgrader or self._started.enter_context(self._start())
        handed_in = outcome.handed_in
        if outcome.judged and not outcome.was_kept and handed_in.place.is_dir():
            with self._changed:
                self._waiting.setdefault(handed_in.lab, set()).add(handed_in.student)
                self._changed.notify()

    def finish(self, outcomes: Sequence[Outcome]) -> dict[Lab, Recorded]:
        """Record whoever was judged, now or before, and is not recorded yet; what came of all, by lab.

        Raises what recording raised in the meantime.
        """
        self._stop()
        if self._error is not None:
            raise self._error
        folders: dict[Lab, set[str]] = {}
        for outcome in outcomes:
            if outcome.judged and outcome.handed_in.place.is_dir():
                folders.setdefault(outcome.handed_in.lab, set()).add(outcome.handed_in.student)
        for lab, students in folders.items():
            if rest := students - self._begun.get(lab, set()):
                self._record(lab, rest)
        return self._done

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self._stop()
        self._started.close()
        self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        """The thread's life: batch after batch, until no more outcomes come."""
        try:
            while batch := self._next():
                self._record(*batch)
        except BaseException as error:
            self._error = error

    def _next(self) -> tuple[Lab, set[str]] | None:
        """What waits of the lab of which most does, as soon as that is enough; None when all is judged."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._most() >= LEAST_AT_ONCE)
            if self._is_over:
                return None
            lab = max(self._waiting, key=lambda lab: len(self._waiting[lab]))
            return lab, self._waiting.pop(lab)

    def _most(self) -> int:
        return max(map(len, self._waiting.values()), default=0)

    def _record(self, lab: Lab, students: set[str]) -> None:
        self._begun.setdefault(lab, set()).update(students)
        assert self._nbgrader is not None, "nobody has told of an outcome"
        now = record(self._course, lab, self._nbgrader, students, force=self._force, say=self._say)
        done = self._done.setdefault(lab, Recorded())
        done.anew += now.anew
        done.passed_over += now.passed_over
        done.problems |= now.problems
        done.feedback += now.feedback
