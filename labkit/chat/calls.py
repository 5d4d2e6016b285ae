"""Counts how often a student's functions and methods are called, without changing their module; meters their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Counted:
    """A module, class or object whose functions are counted in `calls`, under the names that they have in the file.

    Instances that a counted class makes are counted in turn: `KVCache.append`. `counted` is what is inside.
    """

    def __init__(self, counted: Any, calls: Calls, name: str = "") -> None:
        self.counted, self._calls, self._name = counted, calls, name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.counted, name)
        if not callable(found):
            return found
        return Counted(found, self._calls, f"{self._name}.{name}".lstrip("."))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what is inside, and count it."""
        result = self._calls.run(self._name, lambda: self.counted(*args, **kwargs))
        return Counted(result, self._calls, self._name) if isinstance(self.counted, type) else result


@dataclass
class Calls:
    """How often each function was called."""

    times: Counter[str] = field(default_factory=Counter)

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Count and make a call."""
        self.times[name] += 1
        return call()

    def line(self) -> str:
        """The functions, the most frequent first."""
        return ", ".join(f"{name} {times:,} time{'s' * (times != 1)}" for name, times in self.times.most_common())


@dataclass
class MeteredCalls(Calls):
    """The most bytes that one call of `function` held besides its arguments, its result included.

    `largest_bytes` are those of the largest tensor; for NumPy code they are not known, and `largest_bytes` stays 0.
    """

    function: str = ""
    is_numpy: bool = False
    peak_bytes: int = 0
    largest_bytes: int = 0

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call, under the course's meter of arrays or tensors if it is of `function`."""
        from labkit.meters.allocation import AllocationMeter
        from labkit.meters.arrays import measure_arrays

        if name != self.function:
            return call()
        largest = 0
        if self.is_numpy:
            peak, _, result = measure_arrays(call, warm=False)
        else:
            with AllocationMeter() as meter:
                result = call()
            peak, largest = meter.peak_bytes, meter.largest_bytes
        self.peak_bytes, self.largest_bytes = max(self.peak_bytes, peak), max(self.largest_bytes, largest)
        return result
