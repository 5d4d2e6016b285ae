"""Suite side of the simulated machine."""

from __future__ import annotations

from typing import Any

from labstaff.grader.wire import WireError


class Machines:
    """Stub."""

    def describe(self, x: Any) -> list[Any] | None:
        """Stub."""
        return None

    def found(self, description: Any) -> Any:
        """Stub."""
        raise WireError(f"unknown kind {str(description[0])[:80]!r}")

    def carry_out(self, operation: str, arguments: Any) -> tuple[bool, Any]:
        """Stub."""
        raise WireError("no machine")
