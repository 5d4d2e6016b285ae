"""Caches what Triton's interpreter finds out about types, which takes it longer than the values."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def types_found_once(module: Any) -> Iterator[None]:
    """Context in which `module`, Triton's interpreter, inspects each type only once.

    A type says only what it was made of, so that equal ones may share what they hold. What Triton refuses is never
    kept. A Triton without the names that are needed here goes on as it is.
    """
    if not (hasattr(module, "_get_np_dtype") and hasattr(module, "interpreter_semantic")):
        yield
        return
    core: Any = importlib.import_module("triton.language.core")
    block_type, tensor, semantic = core.block_type, core.tensor, type(module.interpreter_semantic)
    make_type, make_tensor = block_type.__init__, tensor.__init__
    dtype_of, broadcast = module._get_np_dtype, semantic.broadcast_impl_value
    types: dict[tuple[int, ...], dict[str, Any]] = {}  # what they hold are the objects whose ids are asked for
    of_shape: dict[tuple[int, int], dict[str, Any]] = {}  # the same, by the id of a shape that they hold
    shapes: dict[tuple[int, ...], Any] = {}
    tensors: dict[tuple[int, int], dict[str, Any]] = {}
    dtypes: dict[int, tuple[Any, Any]] = {}

    def type_made(self: Any, element_ty: Any, shape: Any) -> None:
        known = of_shape.get((id(element_ty), id(shape)))
        if known is not None:
            self.__dict__.update(known)
            return
        sizes = tuple([n.value if type(n) is core.constexpr else n for n in getattr(shape, "values", shape)])
        if not all(type(n) is int for n in sizes):
            make_type(self, element_ty, shape)
            return
        known = types.get((id(element_ty), *sizes))
        if known is None:
            make_type(self, element_ty, shape)
            self.shape = shapes.setdefault(sizes, self.shape)
            types[(id(element_ty), *sizes)] = dict(vars(self))
            of_shape[(id(element_ty), id(self.shape))] = dict(vars(self))
        else:
            vars(self).update(known)

    def tensor_made(self: Any, handle: Any, of: Any) -> None:
        key = (id(of.element_ty), id(of.shape)) if of.is_block() else (id(of), 0)
        known = tensors.get(key)
        if known is None:
            make_tensor(self, handle, of)
            tensors[key] = vars(self) | {"handle": None}
        else:
            vars(self).update(known, handle=handle, type=of)

    def dtype_found(of: Any) -> Any:
        scalar = of.element_ty if isinstance(of, block_type) else of
        known = dtypes.get(id(scalar))
        if known is None:
            known = dtypes[id(scalar)] = scalar, dtype_of(of)
        return known[1]

    def broadcast_unless_equal(self: Any, left: Any, right: Any) -> Any:
        blocks = left.type.is_block() and right.type.is_block()
        return (left, right) if blocks and left.type.shape is right.type.shape else broadcast(self, left, right)

    block_type.__init__, tensor.__init__ = type_made, tensor_made
    module._get_np_dtype, semantic.broadcast_impl_value = dtype_found, broadcast_unless_equal
    try:
        yield
    finally:
        block_type.__init__, tensor.__init__ = make_type, make_tensor
        module._get_np_dtype, semantic.broadcast_impl_value = dtype_of, broadcast
