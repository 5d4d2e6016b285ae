"""What stands between an answer's text and the objects that it reaches, where only the run can tell what they are.

An attribute is fetched, set and deleted by way of these guards, whoever spells its name: a dot, a text, a pattern or
Python's own protocol. Modules are those an answer may import; parts that it may not use are known by what they are, not
by the way to them; what begins with an underscore is the answer's own; and what is changed is its own as well.
"""

from __future__ import annotations

import builtins
import collections
import re
import string
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from labkit.suite.allowed import (
    BUILTINS_REFUSED,
    PRIVATE_OF_LIBRARIES,
    REFUSED_PARTS,
    SAVED,
    is_assertion_of_numpy,
    may_import,
    may_name,
)

TEMPLATES = frozenset(("format", "format_map"))
"""Methods of a text that fetch the attributes it names."""

FETCHING = frozenset(("__getattribute__", "__getattr__"))
CHANGING = frozenset(("__setattr__", "__delattr__"))
BINDING = frozenset(("__get__", "__set__", "__delete__"))
PROTOCOLS = FETCHING | CHANGING | BINDING
"""Python's own protocol by which an attribute is reached by its name, or bound."""

KEEPING = frozenset(("array", "decimal", "functools", "matplotlib", "numpy", "random"))
"""Packages whose objects an answer may give attributes of its choice, where these packages let it."""

CLOSED = {
    "torch._ops": frozenset(("is_view", "name", "namespace", "overloadpacket", "overloads", "tags", "_schema")),
    "torch.fx": frozenset(("forward",)),
    "torch._dynamo": frozenset(),
}
"""Rooms of torch of whose objects only this is open: through the rest an operator runs unseen, or a text as code."""


class Guards:
    """The guards of one answer.

    Args:
        module: the answer's module; what a class of it defines, and what its functions carry, is its own.
        own_names: the names that its text gives to what it makes.
    """

    def __init__(self, module: types.ModuleType, own_names: frozenset[str]) -> None:
        self.name, self.own_names, self._globals = module.__name__, own_names, module.__dict__
        self._refused = dict(_refused_objects())
        self.shown: dict[str, types.ModuleType] = {}
        """The modules of Python's own as the answer finds them."""
        self._open: dict[type, frozenset[str] | None] = {}

    def fetch(self, target: Any, name: str, *default: Any) -> Any:
        """The attribute `name` of `target`; `default`, if there is one, where it has none.

        Raises:
            AttributeError: there is none, or an answer may not use it.
        """
        self._require_open(target, name)
        if name in TEMPLATES:
            self._require_named_fields(target)
        elif name in PROTOCOLS:
            return self._by_protocol(getattr(target, name, *default), name)
        elif _is_private(name):
            if default and not hasattr(target, name):
                return default[0]
            self._require_own(target, name)
        return self.passed(getattr(target, name, *default))

    def boxed(self, target: Any, name: str) -> types.SimpleNamespace:
        """As `fetch`, as the attribute `value` of what is returned: a pattern takes nothing but an attribute."""
        return types.SimpleNamespace(value=self.fetch(target, name))

    def passed(self, value: Any) -> Any:
        """`value`, unless it is a module that an answer may not import, or a part that it may not use."""
        if _is_a(value, types.ModuleType):
            if not may_import(value.__name__, self.name):
                raise AttributeError(f"{value.__name__}: a graded answer may not use it")
        elif id(value) in self._refused:
            raise AttributeError(f"{self._refused[id(value)][0]}: a graded answer may not use it")
        elif type(value) is types.MethodType:  # of whatever passes on what it is asked for
            self._require_open(value.__self__, value.__name__)
        elif type(value) is types.FunctionType and _room(value.__module__) is not None:
            raise AttributeError(f"{value.__qualname__}: a graded answer may not use it")
        return value

    def named(self, name: Any) -> None:
        """Refuse a name of an attribute, whosever it is, that an answer may not use."""
        if type(name) is not str or not may_name(name, self.own_names):
            raise AttributeError(f"{name}: a graded answer may not use it")

    def changed(self, target: Any, name: str) -> Any:
        """`target`, if it is an answer's to change."""
        kind = target if _is_a(target, type) else type(target)
        if not (self._is_own(target) if _is_a(target, type | types.ModuleType) else self._keeps(target)):
            whose = target.__name__ if _is_a(target, types.ModuleType) else kind.__name__
            raise AttributeError(f"{whose}.{name}: a graded answer may not change what is not its own")
        return target

    def by_name(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The builtin `function` (`getattr` and its like), with a guard."""

        def guarded(target: Any, name: str, *rest: Any) -> Any:
            self.named(name)
            if function is getattr:
                return self.fetch(target, name, *rest)
            return function(target if function is hasattr else self.changed(target, name), name, *rest)

        return guarded

    def _by_protocol(self, method: Any, protocol: str) -> Callable[..., Any]:
        """A method that reaches an attribute by its name or binds one, with a guard, wherever it was fetched from."""
        is_bound = isinstance(method, types.MethodType | types.MethodWrapperType | types.BuiltinMethodType)

        def guarded(*args: Any) -> Any:
            target, name, *_ = (method.__self__, *args) if is_bound else (*args, "")
            if protocol in BINDING:
                instance = name if is_bound else args[1]
                if instance is not None:
                    self.changed(instance, protocol)
                return self.passed(method(*args))
            self.named(name)
            if protocol in CHANGING:
                self.changed(target, name)
                return method(*args)
            self._require_open(target, name)
            if name in PROTOCOLS:
                return self._by_protocol(method(*args), name)
            if name in TEMPLATES:
                self._require_named_fields(target)
            elif _is_private(name):
                self._require_own(target, name)
            return self.passed(method(*args))

        return guarded

    def _require_open(self, target: Any, name: str) -> None:
        kind = target if _is_a(target, type) else type(target)
        if kind not in self._open:
            closed = [CLOSED[room] for each in _mro(kind) if (room := _room_of(each)) is not None]
            self._open[kind] = closed[0] if closed else None
        names = self._open[kind]
        if names is not None and name not in names and not name.startswith("__") and not _is_overload(target, name):
            raise AttributeError(f"{kind.__name__}.{name}: a graded answer may not use it")

    def _require_named_fields(self, target: Any) -> None:
        if type(target) is super:
            target = _of_super(target, "__self__")
        if _is_a(target, collections.UserString):
            target = target.data
        if _is_a(target, type) and issubclass(target, str):
            raise AttributeError("format: of a text, not of its class")
        if _is_a(target, str):
            for name in _fetched(target):
                self.named(name)

    def _require_own(self, target: Any, name: str) -> None:
        """Refuse what begins with an underscore, unless an answer's class defines it, or its object carries it."""
        if _is_a(target, types.ModuleType):
            is_own = self._is_own(target)
        else:
            definer = next((each for each in _looked_up_in(target) if name in _namespace(each)), None)
            is_own = self._carries(target, name) if definer is None else self._is_own(definer)
        if not is_own:
            raise AttributeError(f"{name}: a graded answer may not use it")

    def _keeps(self, target: Any) -> bool:
        """Whether an answer may give this object attributes: one of its own classes, or made to carry others' data."""
        kind = type(target)
        if kind is super or kind in weakref.ProxyTypes:
            return kind is super
        if _is_a(target, types.FunctionType):
            return target.__globals__ is self._globals
        if _is_a(target, type):
            return self._is_own(target)
        if any(self._is_own(each) for each in _mro(kind)):
            return True
        if _is_a(target, types.SimpleNamespace | BaseException | weakref.finalize):
            return True
        torch = sys.modules.get("torch")
        if torch is not None and _is_a(
            target, torch.Tensor | torch.nn.Module | torch.optim.Optimizer | torch.autograd.function.FunctionCtx
        ):
            return _room_of(kind) is None
        return kind.__module__.partition(".")[0] in KEEPING

    def _carries(self, target: Any, name: str) -> bool:
        """Whether an answer has given this object this attribute, or has its class answer for what there is not."""
        if not self._keeps(target):
            return False
        torch = sys.modules.get("torch")
        if torch is not None and _is_a(target, torch.nn.Module):
            return True
        definer = next((each for each in _looked_up_in(target) if "__getattr__" in _namespace(each)), None)
        return name in getattr(target, "__dict__", ()) or (definer is not None and self._is_own(definer))

    def _is_own(self, thing: Any) -> bool:
        if _is_a(thing, types.ModuleType):
            return thing.__dict__ is self._globals
        return bool(_namespace(thing).get("__module__") == self.name)


def _refused_objects() -> Iterator[tuple[int, tuple[str, Any]]]:
    """What an answer may not use, by its identity, as far as it is imported; with its name, and held."""
    for name in BUILTINS_REFUSED & vars(builtins).keys():
        yield id(vars(builtins)[name]), (name, vars(builtins)[name])
    for whole in REFUSED_PARTS:
        module, _, part = whole.rpartition(".")
        found = _part(module, part)
        if found is not None and not isinstance(found, types.ModuleType):
            yield id(found), (whole, found)
    assertions = sys.modules.get("numpy.testing")
    for name, value in list(vars(assertions).items()) if assertions else ():
        if callable(value) and not is_assertion_of_numpy(name) and not isinstance(value, type):
            yield id(value), (f"numpy.testing.{name}", value)


def _is_private(name: str) -> bool:
    """Whether a name that an answer may use is one that it gives, and no library or protocol."""
    is_protocol = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not (is_protocol or name.startswith(SAVED) or name in PRIVATE_OF_LIBRARIES)


def _is_a(thing: Any, kinds: Any) -> bool:
    """As `isinstance`, whatever class a thing says that it is of."""
    return issubclass(type(thing), kinds)


def _part(module: str, part: str) -> Any:
    if module in sys.modules:
        return vars(sys.modules[module]).get(part)
    holder, _, name = module.rpartition(".")  # a method of a class, or of an object that a module holds
    return getattr(vars(sys.modules[holder]).get(name), part, None) if holder in sys.modules else None


def _mro(kind: type) -> tuple[type, ...]:
    return type.__dict__["__mro__"].__get__(kind)


def _namespace(kind: type) -> Any:
    return type.__dict__["__dict__"].__get__(kind)


def _of_super(target: Any, name: str) -> Any:
    """What `super()` knows of itself: by a dot it answers for the classes behind it."""
    return vars(super)[name].__get__(target)


def _looked_up_in(target: Any) -> tuple[type, ...]:
    """The classes in which an attribute of `target` is looked for."""
    if type(target) is super:
        kinds = _mro(_of_super(target, "__self_class__"))
        return kinds[kinds.index(_of_super(target, "__thisclass__")) + 1 :]
    return (*(_mro(target) if _is_a(target, type) else ()), *_mro(type(target)))


def _room_of(kind: type) -> str | None:
    """The closed room in which a class was made, if it was in one."""
    return _room(_namespace(kind).get("__module__"))


def _room(module: Any) -> str | None:
    parts = module.split(".")[:2] if isinstance(module, str) else []
    room = ".".join(parts)
    return room if room in CLOSED else None


def _is_overload(target: Any, name: str) -> bool:
    """Whether this is a form of an operator of torch's: `torch.ops.aten.add` has `Tensor`, `out` and others."""
    torch_ops = sys.modules["torch._ops"]
    if _is_a(target, torch_ops.OpOverloadPacket):
        return name in target.overloads()
    return _is_a(target, torch_ops._OpNamespace | torch_ops._Ops) and not callable(getattr(type(target), name, None))


def _fetched(text: str) -> list[str]:
    """The attributes that `text.format(…)` fetches, those in nested fields included."""
    try:
        fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None]
    except ValueError:
        return []  # format says so itself
    return [each for name, spec in fields for each in [*re.findall(r"\.(\w+)", name), *_fetched(spec or "")]]
