"""What meters of tensors have in common: every operator that torch runs is theirs to see, in its smallest parts."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A dispatch mode of which `_see` runs every operator, and notes what it will.

    In inference mode torch hands an operator such as `matmul` over whole; its parts are then seen one by one, as
    outside of it.

    Raises RuntimeError for a tensor of a class with a `__torch_dispatch__` of its own: what it does there in an
    operator's stead, torch shows to no mode.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo at the first operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind is not torch.Tensor:
                raise RuntimeError(f"a {kind.__name__} answers operators itself, unseen by meters: use a plain tensor")
        if torch.is_inference_mode_enabled():
            out = self._in_parts(func, args, kwargs)
            if out is not NotImplemented:
                return out
        return self._see(func, args, kwargs)

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on its arguments; returns what it returns."""
        return func(*args, **kwargs)

    def _in_parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator that is made of others, run under this mode; NotImplemented for any other."""
        TorchDispatchMode.__enter__(self)
        try:
            return func.decompose(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)
