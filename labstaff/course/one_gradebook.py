"""Has a command of nbgrader's open the gradebook once, and keep what it writes of a submission in one step.

nbgrader opens it nine times for each submission, and commits some forty times. Each opening looks at every table and
forgets what SQL the last one has worked out, each commit waits for the disk: more time than all else that it does.

nbgrader has no setting for it, and names its class `Gradebook` where it opens one: that name is what is replaced there,
in commands that record, and in no other process. What is asked and what is written are nbgrader's own.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

from nbgrader.api import Gradebook
from sqlalchemy.orm import Session, scoped_session, sessionmaker

OPENED_BY = (
    "nbgrader.api",
    "nbgrader.converters.autograde",
    "nbgrader.preprocessors.getgrades",
    "nbgrader.preprocessors.latesubmissions",
    "nbgrader.preprocessors.overwritecells",
    "nbgrader.preprocessors.overwritekernelspec",
    "nbgrader.preprocessors.saveautogrades",
    "labstaff.course.suite_outputs",
)
"""Where a gradebook is opened while nbgrader records; `nbgrader.api` itself, for plugins that are imported later."""


class OneGradebook(Gradebook):
    """nbgrader's gradebook, one of each address: it is made once, and made again it is the same."""

    _open: ClassVar[dict[str, OneGradebook]] = {}

    def __new__(cls, db_url: str, *_more: Any, **_named: Any) -> OneGradebook:
        """The one that is open, or a new one."""
        return cls._open.get(db_url) or super().__new__(cls)

    def __init__(self, db_url: str, course_id: str = "default_course", authenticator: Any = None) -> None:
        if db_url not in self._open:
            super().__init__(db_url, course_id, authenticator)
            self.db = scoped_session(sessionmaker(class_=_KeptLater, bind=self.engine))
            self._courses = {course_id}
            self._open[db_url] = self
        elif course_id not in self._courses:
            self.check_course(course_id)
            keep()
            self._courses.add(course_id)
        self.course_id, self.authenticator = course_id, authenticator

    def close(self) -> None:
        """Forget what was read, so that whoever opens it next reads it anew."""
        self.db.expire_all()

    def __exit__(self, kind: type[BaseException] | None, *_error: Any) -> None:
        if kind is not None:
            self.db.rollback()
        self.close()


class _KeptLater(Session):
    """What nbgrader commits goes to the database at once, and is kept with the rest of its submission, by `keep`."""

    def commit(self) -> None:
        """As the body of nbgrader's code sees it: whatever was read before is read anew."""
        self.flush()
        self.expire_all()

    def keep(self) -> None:
        super().commit()


def install() -> None:
    """From now on this process opens each gradebook once.

    In an nbgrader that opens it elsewhere nothing is replaced: who waits for what is not kept yet would wait for ever.
    """
    modules = [importlib.import_module(name) for name in OPENED_BY]
    if all(getattr(module, "Gradebook", None) is Gradebook for module in modules):
        for module in modules:
            module.Gradebook = OneGradebook  # type: ignore[attr-defined]


@contextlib.contextmanager
def in_one_step() -> Iterator[None]:
    """What was written before is kept; what the body writes is kept at its end, or taken back when it raises.

    The body may take its time before it writes: until then nobody else waits for the gradebook.
    """
    keep()
    try:
        yield
    except BaseException:
        for gradebook in OneGradebook._open.values():
            gradebook.db.rollback()
        raise
    keep()


def keep() -> None:
    """Have what was written so far stay, whatever comes."""
    for gradebook in OneGradebook._open.values():
        gradebook.db().keep()
