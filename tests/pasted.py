"""A pytest plugin that looks for answers in the tests: it records a solution's calls and repeats them with helpers.

`recorded` wraps the tasks of the submission under test. When the run ends, every function of the lab's tests and of
`labkit.testing` that takes the recorded arguments is called with them; those whose results are mostly the recorded
ones are written to `pasted.json` next to the submission, by task.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.suite.limits import TookTooLong, time_limit

TESTS_PER_CLASS = 5
CALLS_PER_TASK = 12
MAX_BYTES = 4 << 30
FOLDERS: list[Path] = []
N_CALLS: dict[str, int] = defaultdict(int)
CALLS: dict[str, list[tuple[Any, Any, Any]]] = defaultdict(list)


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its first calls recorded."""
    FOLDERS[:] = [Path(sys.modules[function.__module__].__file__ or "").parent]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = None
        N_CALLS[function.__name__] += 1
        if len(CALLS[function.__name__]) < CALLS_PER_TASK:
            with contextlib.suppress(Exception):  # what cannot be copied is not recorded
                given = copy.deepcopy((args, kwargs))
        result = function(*args, **kwargs)
        if given:
            with contextlib.suppress(Exception):
                CALLS[function.__name__].append((*given, copy.deepcopy(_plain(result))))
        return result

    return call


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first tests of each class."""
    seen: dict[Any, int] = defaultdict(int)
    for item in list(items):
        seen[item.parent] += 1
        if seen[item.parent] > TESTS_PER_CLASS:
            items.remove(item)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Repeat the calls with every helper, and write down which helpers give the same."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))  # numbers that mean something else may be sizes
    helpers = list(_helpers(session))
    found = {
        task: [name for name, helper in helpers if _answers(task, helper, calls)]
        for task, calls in CALLS.items()
        if calls
    }
    (FOLDERS[0] / "pasted.json").write_text(json.dumps(found), encoding="utf-8")


def _helpers(session: pytest.Session) -> Iterator[tuple[str, Any]]:
    suite = {Path(str(item.path)).parent for item in session.items}
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if not name.startswith("labkit.testing") and file.parent not in suite:
            continue
        for helper in list(vars(module).values()):
            if inspect.isfunction(helper) and helper.__module__ == name and not helper.__name__.startswith("test"):
                yield f"{name}:{helper.__name__}", helper


def _answers(task: str, helper: Any, calls: list[tuple[Any, Any, Any]]) -> bool:
    """Whether it gives the recorded results in more than half of the calls, and does not call the task for them."""
    n_same, n_before = 0, N_CALLS[task]
    if not _fits(helper, *calls[0][:2]):
        return False
    for n_tried, (args, kwargs, result) in enumerate(calls):
        if n_tried - n_same >= len(calls) / 2:
            return False
        with (
            contextlib.suppress(Exception, SystemExit, pytest.exit.Exception, pytest.fail.Exception, TookTooLong),
            time_limit(1),
        ):
            n_same += _same(_plain(helper(*copy.deepcopy(args), **copy.deepcopy(kwargs))), result)
    return n_same > len(calls) / 2 and N_CALLS[task] == n_before


def _fits(helper: Any, args: Any, kwargs: Any) -> bool:
    try:
        inspect.signature(helper).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Tensors as arrays, and tuples as lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().numpy() if value.dtype == torch.bfloat16 else value.detach().numpy()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(_same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(_same(got[key], want[key]) for key in want)
    if isinstance(want, np.ndarray | float | int):
        return np.shape(got) == np.shape(want) and np.allclose(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    return want is not None and bool(got == want)
