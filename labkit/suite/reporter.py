"""pytest's terminal reporter with a lab's own words in place of tracebacks."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

from labkit.labs.catalog import lab_at
from labkit.labs.manifest import Lab
from labkit.suite.verdict import Verdict
from labkit.suite.words import line_style, run_lines


def wants_words(config: pytest.Config, labs: list[Lab]) -> bool:
    """Whether everything asked for lies in labs, and no other style of traceback was asked for.

    All of a student's tree does: it has no tests but those of labs.
    """
    paths = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    whole = {lab.folder.parent for lab in labs}
    whole |= {house for house in (folder.parent for folder in whole) if not (house / "tests").is_dir()}
    inside = [lab_at(path, labs) or path in whole for path in paths]
    return bool(paths) and all(inside) and config.getoption("tbstyle", "auto") == "auto"


class LabReporter(TerminalReporter):  # type: ignore[misc]
    """Says what each task lacks; everything else is pytest's."""

    def __init__(self, config: pytest.Config, labs: list[Lab], verdicts: dict[str, list[Verdict]]) -> None:
        super().__init__(config)
        self._labs, self._verdicts = labs, verdicts

    @classmethod
    def take_over(cls, config: pytest.Config, labs: list[Lab], verdicts: dict[str, list[Verdict]]) -> None:
        """Stand in for the standard reporter, if there is one."""
        standard = config.pluginmanager.getplugin("terminalreporter")
        if standard is None:
            return
        config.pluginmanager.unregister(standard)
        config.pluginmanager.register(cls(config, labs, verdicts), "terminalreporter")
        config.option.no_header = config.option.verbose < 1
        config.option.disable_warnings = True

    def summary_failures(self) -> None:
        """What failed, by lab and task."""
        for lab in self._labs:
            if verdicts := self._verdicts.get(lab.label):
                self.write_line("")
                for line in run_lines(lab, verdicts, everything=self.verbosity > 0):
                    style = line_style(line)
                    self.write_line(line, **({style: True} if style else {}))

    def short_test_summary(self) -> None:
        """Nothing: the lines of `summary_failures` have said it."""
