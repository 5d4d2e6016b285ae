"""A lab's own words on pytest's terminal, in place of tracebacks."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from labkit.labs.catalog import lab_at
from labkit.labs.manifest import Lab
from labkit.suite.verdict import Verdict
from labkit.suite.words import WholeSuite, line_style, run_lines

LAB_LINES = "lab_lines"
"""Under which name pytest knows the plugin that says what each task lacks."""


def wants_words(config: pytest.Config, labs: list[Lab]) -> bool:
    """Whether everything asked for lies in labs, and no other style of traceback was asked for.

    All of a student's tree does: it has no tests but those of labs.
    """
    paths = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    whole = {lab.folder.parent for lab in labs}
    whole |= {house for house in (folder.parent for folder in whole) if not (house / "tests").is_dir()}
    inside = [lab_at(path, labs) or path in whole for path in paths]
    return bool(paths) and all(inside) and config.getoption("tbstyle", "auto") == "auto"


def use_words(
    config: pytest.Config, labs: list[Lab], verdicts: dict[str, list[Verdict]], whole: dict[str, WholeSuite]
) -> None:
    """Have the terminal say what each task lacks where pytest would show tracebacks; all else is pytest's.

    `verdicts` and `whole`, by lab, are filled while the run goes on.
    """
    config.option.no_header = config.option.verbose < 1
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter.reportchars = ""  # no list of failures and no warnings: the lab's lines say what matters
    config.pluginmanager.register(NoTracebacks(), "lab_no_tracebacks")
    config.pluginmanager.register(LabLines(labs, verdicts, whole), LAB_LINES)


class NoTracebacks:
    """Keeps failures out of pytest's own summary."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Keep failures from pytest's own summary, which comes between here and there, not from its count below."""
        failed = terminalreporter.stats.pop("failed", [])
        try:
            return (yield)
        finally:
            if failed:
                terminalreporter.stats["failed"] = failed


class LabLines:
    """Says what each task lacks."""

    def __init__(self, labs: list[Lab], verdicts: dict[str, list[Verdict]], whole: dict[str, WholeSuite]) -> None:
        self._labs, self._verdicts, self._whole = labs, verdicts, whole

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What failed, by lab and task."""
        for lab in self._labs:
            if verdicts := self._verdicts.get(lab.label):
                terminalreporter.write_line("")
                everything = terminalreporter.verbosity > 0
                for line in run_lines(lab, verdicts, everything=everything, whole_suite=self._whole.get(lab.label)):
                    style = line_style(line)
                    terminalreporter.write_line(line, **({style: True} if style else {}))
