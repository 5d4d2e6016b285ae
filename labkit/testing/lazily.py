"""Values that are made when somebody first asks for them: most plain computations are never needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazily(Generic[T]):
    """A sequence of what `makers` return, each called when its place is first asked for."""

    def __init__(self, makers: Iterable[Callable[[], T]]) -> None:
        self._makers = list(makers)
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[T]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> T:
        if place not in self._made:
            self._made[place] = self._makers[place]()
        return self._made[place]

    def map(self, function: Callable[[T], Any]) -> Lazily[Any]:
        """`function` of each."""
        return Lazily([lambda place=place: function(self[place]) for place in range(len(self))])  # type: ignore[misc]

    def __add__(self, more: Lazily[T]) -> Lazily[T]:
        both: list[tuple[Lazily[T], int]] = [(each, place) for each in (self, more) for place in range(len(each))]
        return Lazily([lambda each=each, place=place: each[place] for each, place in both])  # type: ignore[misc]


def each_of(value: Any) -> Iterator[Any]:
    """The values where they are several, one after the other; otherwise the one alone."""
    return iter(value if isinstance(value, list | tuple | Lazily) else [value])
