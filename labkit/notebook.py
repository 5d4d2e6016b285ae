"""Functions for the report notebooks: the student's module, a task's tests, predictions, a real model's perplexity."""

from __future__ import annotations

import functools
import importlib
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING

from labkit.labs.catalog import find_lab, find_task
from labkit.suite.finder import LabFinder, student_source
from labkit.suite.forked import run_forked
from labkit.suite.messages import ending_text, run_lines

if TYPE_CHECKING:
    from labkit.model.llama import Attend
    from labkit.model.weights import Model


def student_module(lab: str) -> ModuleType:
    """The student's module of `lab` (as `find_lab` names it), read from its file again on each call.

    A file that cannot be imported raises nothing here: its functions raise the reason when they are called.
    """
    found = find_lab(lab)
    finder = LabFinder([student_source(found)])
    finder.install()
    try:
        return importlib.import_module(found.module)
    finally:
        finder.remove()


def check(lab: str, task: str) -> None:
    """Run the tests of one task of `lab` on the student's file, and print the results."""
    found = find_lab(lab)
    run = run_forked(found, tests=(find_task(found, task).tests,))
    more = f"uv run lab check {found.number} -v"
    if run.ended.is_no_verdict or not run.results:
        print(ending_text(run.ended))
    else:
        print("\n".join(run_lines(found, run.results, whole_suite=run.collected, more=more)))


def predict(value: float | None, unit: str) -> float | None:
    """Keep a prediction of what the next cell measures: print it with the time, and return it.

    The printed line stays in the notebook, above the measurement. None, as the cell is handed out, is no prediction.
    """
    if value is None:
        print(f"No prediction yet. Type a number ({unit}) and run this cell before the next one.")
    else:
        print(f"{datetime.now().astimezone():%Y-%m-%d %H:%M}  predicted: {value:,g} {unit}")
    return value


def compare(predicted: float | None, measured: float, unit: str) -> None:
    """Print what was measured, and how many times the prediction it is."""
    ratio = f", {measured / predicted:.3g} times the prediction ({predicted:,g} {unit})" if predicted else ""
    print(f"measured: {measured:,g} {unit}{ratio}")


def perplexity(attend: Attend | None = None, tokens: int = 512) -> float:
    """The perplexity of a chapter's first `tokens` tokens in SmolLM2-135M, whose attention is `attend`.

    The first quarter is read and not scored. `attend(layer, q, k, v)` is called once per layer, with q (9, N, 64) and
    k, v (3, N, 64), already rotated to their positions: query head h reads key head h // 3. Without `attend` the model
    uses torch's own.

    Raises:
        ModelError: the model is not installed; the message says what to do.
    """
    from labkit.model.perplexity import perplexity as perplexity_of
    from labkit.model.perplexity import sample_text

    model = _model()
    text = model.text.encode(sample_text())[:tokens]
    return perplexity_of(model.llama, text, attend, len(text) // 4)


@functools.cache
def _model() -> Model:
    from labkit.model.weights import read_model

    return read_model()
