"""Parts of Python's own modules that reach attributes by their names, or run a text, as an answer finds them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any

from labkit.meters import collector
from labstaff.judge.guards import Guards

TYPES_ALONE = re.compile(
    r"(?:[\w\s\[\],|]|\.{3}|(?<![\w.])(?:collections\.abc\.[A-Z]\w*|os\.PathLike|torch\.Tensor)(?![\w.]))*"
)
"""Texts that name types and compute nothing. The dotted names are those that libraries have in theirs."""


def guarded_parts(guards: Guards) -> dict[str, Any]:
    """What an answer finds in place of parts of modules, by their names."""

    def update_wrapper(
        wrapper: Any,
        wrapped: Any,
        assigned: Sequence[str] = functools.WRAPPER_ASSIGNMENTS,
        updated: Sequence[str] = functools.WRAPPER_UPDATES,
    ) -> Any:
        for name in {*assigned, *updated} - {*functools.WRAPPER_ASSIGNMENTS, *functools.WRAPPER_UPDATES}:
            guards.named(name)
        for name in assigned:
            guards.changed(wrapper, name)
        guards.changed(wrapper, "__wrapped__")
        return functools.update_wrapper(wrapper, wrapped, tuple(assigned), tuple(updated))

    def wraps(
        wrapped: Any,
        assigned: Sequence[str] = functools.WRAPPER_ASSIGNMENTS,
        updated: Sequence[str] = functools.WRAPPER_UPDATES,
    ) -> Callable[[Any], Any]:
        return functools.partial(update_wrapper, wrapped=wrapped, assigned=assigned, updated=updated)

    def total_ordering(cls: Any) -> Any:
        return functools.total_ordering(guards.changed(cls, "__lt__"))

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, **options)
        guards.changed(cls, "__init__")
        for name in vars(cls).get("__annotations__", ()):
            if type(name) is not str or not name.isidentifier():
                raise TypeError(f"a field is called by a name, not {str(name)[:80]!r}")
        return dataclasses.dataclass(cls, **options)

    return {
        "gc.enable": collector.enable,
        "gc.disable": collector.disable,
        "functools.update_wrapper": update_wrapper,
        "functools.wraps": wraps,
        "functools.total_ordering": total_ordering,
        "dataclasses.dataclass": dataclass,
    }


def evaluates_names_alone() -> None:
    """From here on, what stands for a type in a text names types and computes nothing, whoever has it evaluated."""
    reference: Any = typing.ForwardRef
    evaluate = reference._evaluate
    if evaluate.__module__ == __name__:
        return

    def evaluate_names(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not TYPES_ALONE.fullmatch(self.__forward_arg__):
            raise NameError(f"{self.__forward_arg__!r}: a graded answer may name types in an annotation, and no more")
        return evaluate(self, *args, **kwargs)

    reference._evaluate = evaluate_names


def copies_are_of_its_kind() -> None:
    """From here on, what `copy` fills with an object's state is a new object of that one's class, and nothing else."""
    module: Any = copy
    reconstruct = module._reconstruct
    if reconstruct.__module__ == __name__:
        return

    def reconstruct_of_its_kind(x: Any, memo: Any, func: Any, args: Any, *state: Any, **how: Any) -> Any:
        def made(*given: Any) -> Any:
            new = func(*given)
            if type(new) is not type(x) or new is x:
                raise TypeError(f"a copy of a {type(x).__name__} is another {type(x).__name__}")
            return new

        return reconstruct(x, memo, made, args, *state, **how)

    module._reconstruct = reconstruct_of_its_kind
