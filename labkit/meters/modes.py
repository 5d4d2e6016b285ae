"""The base of all meters of tensors: a dispatch mode that sees every torch operator, in its smallest parts."""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.collector import collector_waits


class OperatorMode(TorchDispatchMode):
    """A dispatch mode whose `_see` runs every operator and may record it.

    In inference mode torch hands an operator such as `matmul` over whole; its parts are then seen one by one, as
    outside of it. While it looks on, the garbage collector runs only when it is called.

    Raises RuntimeError for a tensor of a class with a `__torch_dispatch__` of its own (what it does there in an
    operator's stead, torch shows to no mode), and for one that is sparse, nested or laid out for a library: its
    operators have no sizes that could be counted. On leaving
    it raises RuntimeError when it is not the one that looked on last: another was left on, or this one was taken away
    meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._collector = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo at the first operator

    def __enter__(self) -> Any:
        self._collector.enter_context(collector_waits())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        is_last = _looks_on_last() is self
        try:
            super().__exit__(*error)
        finally:
            self._collector.close()
        if not is_last:
            raise RuntimeError(f"another dispatch mode than {type(self).__name__}, which is to end, looks on")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind is not torch.Tensor:
                raise RuntimeError(f"a {kind.__name__} answers operators itself, unseen by meters: use a plain tensor")
        _require_readable(args)
        if kwargs:
            _require_readable(kwargs.values())
        if torch.is_inference_mode_enabled():
            out = self._in_parts(func, args, kwargs)
            if out is not NotImplemented:
                return out
        return self._see(func, args, kwargs)

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on its arguments; returns what it returns."""
        return func(*args, **kwargs)

    def _in_parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a composite operator, run under this mode; NotImplemented for any other."""
        TorchDispatchMode.__enter__(self)
        try:
            return func.decompose(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)


def _require_readable(values: Iterable[Any]) -> None:
    """Refuse operands whose storage a meter cannot read from torch itself."""
    for value in values:
        kind = type(value)
        if kind is tuple or kind is list:
            _require_readable(value)
        elif issubclass(kind, torch.Tensor) and (value.layout is not torch.strided or value.is_nested):
            raise RuntimeError("a tensor that is sparse, nested or in a library's layout: meters count plain ones")


def _looks_on_last() -> TorchDispatchMode | None:
    """The dispatch mode that sees an operator first."""
    n_modes = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(n_modes - 1) if n_modes else None
