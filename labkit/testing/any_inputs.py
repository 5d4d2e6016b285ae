"""How hypothesis draws inputs for tests of labs: the same ones in every run, and one failure to read, not several."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings


def any_inputs(max_examples: int, **others: Any) -> settings:
    """Settings for so many examples, none of them kept on disk or made simpler; `others` are hypothesis's own."""
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=max_examples,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        **others,
    )
