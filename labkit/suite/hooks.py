"""What other plugins may decide about a run of the labs' suites: which answer is judged, and where it lives."""

from __future__ import annotations

from importlib.abc import Loader
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from labkit.labs.manifest import Lab
    from labkit.suite.finder import Answer


@pytest.hookspec(firstresult=True)
def pytest_lab_answer(config: pytest.Config, lab: Lab) -> Answer | None:
    """The answer to judge in place of the student's; None leaves it to the next plugin."""


@pytest.hookspec(firstresult=True)
def pytest_lab_loader(config: pytest.Config, labs: list[Lab]) -> Callable[[Answer], Loader] | None:
    """What loads answers that live in processes of their own; None for the usual way, in this one."""
