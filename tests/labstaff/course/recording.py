"""nbgrader imported once, for tests in which each of its commands is a process of its own."""

from __future__ import annotations

import os

from nbgrader.apps.nbgraderapp import NbGraderApp

import labstaff.course.nbgrader_process as nbgrader_process
from labstaff.course import suite_outputs  # noqa: F401 — imported before the processes are forked


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
