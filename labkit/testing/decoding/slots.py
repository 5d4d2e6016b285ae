"""What token slots are used for while requests are served: a slow reference that keeps a record of every slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.testing.compare import assert_keys, assert_type, require

Requests = Sequence[tuple[int, int, int]]
SHARES = ("token", "reserved", "internal", "external", "free")
MISTAKES = {
    "first_token_late": "a request that is placed gets its first token a step late: step 2 places it with that token",
    "out_of_order": "a request overtakes one that waits before it and does not fit",
    "waiting_is_external": "all that is free counts as external while anybody waits",
    "leaves_before_count": "requests leave before the slots are counted",
    "output_alone": "the power of two is of prompt and output together: it is of the output alone, beside the prompt",
    "restarts_at_the_end": "a request that gave its blocks back waits as the last: it waits as the first",
}
"""What is done otherwise → how it is told."""


def assert_shares(answer: Callable[..., Any], requests: Requests, num_slots: int, policy: str, block_size: int) -> None:
    """Compare the shares that `answer` gives with a record of every slot, and name the usual mistakes."""
    given: dict[str, Any] = {"requests": requests, "num_slots": num_slots, "policy": policy, "block_size": block_size}

    def shares(**mistakes: bool) -> dict[str, float]:
        sums = slots_used(**given, **mistakes)  # type: ignore[arg-type]
        steps = sums.pop("steps")
        if not steps:
            return dict.fromkeys(SHARES, 0.0) | {"free": 1.0}
        return {name: count / (steps * num_slots) for name, count in sums.items()}

    text = f"{len(requests)} requests, {num_slots} slots, {policy!r}, blocks of {block_size}"
    got = assert_keys(f"the result ({text})", answer(requests, num_slots, policy, block_size), SHARES)
    for name, value in got.items():
        assert_type(f"{name} ({text})", value, (int, float), "a number")
    want = shares()
    off = [name for name in SHARES if not abs(got[name] - want[name]) < 1e-9]
    if not off:
        return
    usual = [said for mistake, said in MISTAKES.items() if all(
        abs(got[name] - value) < 1e-9 for name, value in shares(**{mistake: True}).items())]  # fmt: skip
    total = sum(got.values())
    cause = f"\nThat is exactly what comes out when {usual[0]}" if usual else ""
    if not usual and abs(total - 1) > 1e-9:
        cause = f"\nThe five add up to {total:.6g}, not to 1: a slot is counted twice, or not at all"
    require(False, f"{off[0]} is {got[off[0]]:.6g}, expected {want[off[0]]:.6g} ({text})"
            + (f"; so are {', '.join(off[1:])} off" if off[1:] else "") + cause)  # fmt: skip


def assert_worked_example(answer: Callable[..., Any], policy: str) -> None:
    """Compare the shares of the handout's one request, in 8 slots and blocks of 4, with those worked by hand."""
    got = assert_keys("the result", answer([(2, 2, 8)], 8, policy, 4), SHARES)
    internal = 8 if policy == "max" else 0
    sixteenths = {"token": 7, "reserved": 1, "internal": internal, "external": 0, "free": 8 - internal}
    want = {name: count / 16 for name, count in sixteenths.items()}
    off = [name for name in SHARES if abs(got[name] - want[name]) > 1e-9]
    require(not off, f"[(2, 2, 8)], 8 slots, {policy!r}: {got}, expected {want}")


def some_requests(rng: np.random.Generator, count: int) -> Requests:
    """Requests of up to 40 tokens."""
    pairs = rng.integers(1, 18, (count, 2)).tolist()
    return [(prompt, output, min(40, prompt + output + int(rng.integers(8)))) for prompt, output in pairs]


def slots_used(*, requests: Requests, num_slots: int, policy: str, block_size: int, **mistakes: bool) -> dict[str, int]:
    """Slots of each kind summed over all steps, and the number of `steps`.

    `mistakes` name what is done otherwise: see `MISTAKES`.
    """
    wrong = lambda name: mistakes.get(name, False)  # noqa: E731
    owner: list[int | None] = [None] * num_slots
    waiting: list[int] = list(range(len(requests)))
    running: list[int] = []
    tokens = [0] * len(requests)
    sums = dict.fromkeys((*SHARES, "steps"), 0)
    whole = num_slots // block_size * block_size

    def size_of(request: int) -> int:
        return wanted(requests[request], policy, output_alone=wrong("output_alone"))

    def held(request: int) -> int:
        return owner.count(request)

    def fill(request: int, needed: int) -> bool:
        """Blocks for so many tokens, or nothing."""
        more = -(-needed // block_size) - held(request) // block_size
        vacant = [start for start in range(0, whole, block_size) if owner[start] is None]
        if more > len(vacant):
            return False
        for start in vacant[: max(more, 0)]:
            owner[start : start + block_size] = [request] * block_size
        return True

    def run_of(request: int) -> bool:
        """A run of neighbouring slots, the lowest."""
        size = size_of(request)
        for start in range(num_slots - size + 1):
            if all(each is None for each in owner[start : start + size]):
                owner[start : start + size] = [request] * size
                return True
        return False

    def place(request: int) -> bool:
        return fill(request, requests[request][0] + 1) if policy == "paged" else run_of(request)

    def release(request: int) -> None:
        owner[:] = [None if each == request else each for each in owner]

    while running or waiting:
        for request in running[:]:
            while request in running and policy == "paged" and not fill(request, tokens[request] + 1):
                last = running.pop()
                release(last)
                waiting.insert(len(waiting) if wrong("restarts_at_the_end") else 0, last)
            if request in running:
                tokens[request] += 1
        _admit(waiting, running, tokens, requests, place, wrong)
        if wrong("leaves_before_count"):
            _leave(running, tokens, requests, release)
        for request in running:
            final, slots = sum(requests[request][:2]), held(request)
            sums["token"] += tokens[request]
            sums["reserved"] += min(slots, final) - tokens[request]
            sums["internal"] += max(slots - final, 0)
        left = owner.count(None)
        stuck = bool(waiting) and policy != "paged" and left >= size_of(waiting[0])
        sums["external" if stuck or (waiting and wrong("waiting_is_external")) else "free"] += left
        sums["steps"] += 1
        _leave(running, tokens, requests, release)
    return sums


def wanted(request: tuple[int, int, int], policy: str, output_alone: bool = False) -> int:
    """The slots that a policy other than "paged" sets aside."""
    prompt, output, limit = request
    if policy == "oracle":
        return prompt + output
    if policy == "max":
        return limit
    power = 1
    while power < (output if not output_alone else prompt + output):
        power *= 2
    return min(power if output_alone else prompt + power, limit)


def _admit(
    waiting: list[int],
    running: list[int],
    tokens: list[int],
    requests: Requests,
    place: Callable[[int], bool],
    wrong: Callable[[str], bool],
) -> None:
    for request in list(waiting):
        if not place(request):
            if wrong("out_of_order"):
                continue
            return
        waiting.remove(request)
        running.append(request)
        tokens[request] = requests[request][0] + (0 if wrong("first_token_late") else 1)


def _leave(running: list[int], tokens: list[int], requests: Requests, release: Callable[[int], None]) -> None:
    for request in list(running):
        if tokens[request] >= sum(requests[request][:2]):
            running.remove(request)
            release(request)
