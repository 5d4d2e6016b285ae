"""Leaves out of a long trace what a picture of it cannot show."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from labkit.meters.tracing import THERE_BEFORE, Life, Pass, Stack, Trace

MAX_STEPS = 20_000
MAX_LIVES = 20_000


def thinned(trace: Trace, most_steps: int = MAX_STEPS, most_lives: int = MAX_LIVES) -> Trace:
    """The trace itself if it is short; otherwise one with about as many steps and blocks as given.

    Half of the steps are those around the peak. Of all others, cut into intervals, the one with the most bytes stays.
    The blocks that stay are those alive at the peak and those with the largest area in the picture. All others are one
    block of the kind "rest" per step, so that each step keeps its exact sum.
    """
    if len(trace.steps) <= most_steps and len(trace.lives) <= most_lives:
        return trace
    kept = _steps(trace, most_steps)
    shown = [_moved(life, kept) for life in trace.lives]
    visible = [life for life in shown if life.died is None or life.born < life.died]
    visible = [life for life in visible if life.born < len(kept)]
    peak = bisect_left(kept, trace.peak_step)
    visible.sort(key=lambda life: (not life.alive_at(peak), -_area(life, len(kept))))
    large, small = visible[:most_lives], visible[most_lives:]
    made = Trace(
        steps=[trace.steps[step] for step in kept],
        lives=[*large, *_rest(small, len(kept))],
        lines=trace.lines,
        stacks=trace.stacks,
        passes=_passes(trace.passes, kept),
    )
    made.notes = [
        *trace.notes,
        f"Thinned: {len(kept):,} of {len(trace.steps):,} steps, among them all near the peak, and {len(large):,} of "
        f"{len(trace.lives):,} blocks. The sum of each step is exact.",
    ]
    return _without_unused_stacks(made)


def _steps(trace: Trace, most: int) -> list[int]:
    n, near = len(trace.steps), most // 4
    around = range(max(trace.peak_step - near, 0), min(trace.peak_step + near, n))
    width = max(-(-2 * n // most), 1)
    fullest = (max(range(i, min(i + width, n)), key=trace.bytes_at) for i in range(0, n, width))
    return sorted({*around, *fullest})


def _moved(life: Life, kept: Sequence[int]) -> Life:
    died = None if life.died is None else bisect_left(kept, life.died)
    return replace(life, born=bisect_left(kept, life.born), died=died if died != len(kept) else None)


def _area(life: Life, n_steps: int) -> int:
    return life.nbytes * ((n_steps if life.died is None else life.died) - life.born)


def _rest(small: Sequence[Life], n_steps: int) -> list[Life]:
    """The sum of the small blocks, one block for every run of steps over which it stays the same."""
    changes, before = [0] * (n_steps + 1), 0
    for life in small:
        if life.kind in THERE_BEFORE:  # these are no part of a step's bytes
            before += life.nbytes
            continue
        changes[life.born] += life.nbytes
        changes[n_steps if life.died is None else life.died] -= life.nbytes
    name = "smaller blocks together"
    made = [Life(before, (), "", "", None, None, 0, None, "before", name)] if before else []
    live, since = 0, 0
    for step in range(n_steps + 1):
        if not changes[step] and step < n_steps:
            continue
        if live:
            made.append(Life(live, (), "", "rest", None, None, since, step, "rest", name))
        live, since = live + changes[step], step
    return made


def _passes(passes: Sequence[Pass], kept: Sequence[int]) -> list[Pass]:
    return [Pass(each.name, first) for each in passes if (first := bisect_left(kept, each.first)) < len(kept)]


def _without_unused_stacks(trace: Trace) -> Trace:
    used = {step.stack for step in trace.steps} | {life.stack for life in trace.lives}
    stacks = {number: i for i, number in enumerate(sorted(stack for stack in used if stack is not None))}
    lines = {number: i for i, number in enumerate(sorted({n for s in stacks for n in trace.stacks[s].lines}))}
    trace.steps = [replace(s, stack=None if s.stack is None else stacks[s.stack]) for s in trace.steps]
    for life in trace.lives:
        life.stack = None if life.stack is None else stacks[life.stack]
    old = [trace.stacks[number] for number in stacks]
    trace.stacks = [Stack(tuple(lines[n] for n in stack.lines), stack.module) for stack in old]
    trace.lines = [trace.lines[number] for number in lines]
    return trace
