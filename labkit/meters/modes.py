"""The base of all meters of tensors: a dispatch mode that sees every torch operator, in its smallest parts."""

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from labkit.meters.arrays import collector_waits
from labkit.meters.torch_private import TorchDispatchMode, is_wrapper_type


class OperatorMode(TorchDispatchMode):
    """A dispatch mode whose `_see` runs every operator and may record it.

    In inference mode torch hands an operator such as `matmul` over whole; its parts are then seen one by one, as
    outside of it. While it looks on, the garbage collector runs only when it is called.
    """

    def __init__(self) -> None:
        super().__init__()
        self._within = contextlib.ExitStack()
        self._has_wrappers = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch's compiler at the first operator

    def __enter__(self) -> Any:
        self._within.enter_context(collector_waits())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._within.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper_type, types)):
            self._has_wrappers = True
            return NotImplemented  # the operators that a wrapper subclass (DTensor, jagged NestedTensor) runs come next
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


class AttentionCalls(TorchFunctionMode):
    """Adds to `names` each of torch's own functions of attention that is called, by whatever name.

    A dispatch mode sees only the parts of those that have no kernel for the inputs, as `scaled_dot_product_attention`
    of matrices without leading axes.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "") or str(func)
        if "attention" in name:
            self.names.append(name)
        return func(*args, **(kwargs or {}))
