"""Chapter 09: what a cache's slots are used for under four policies of allocation, counted slot by slot."""

from __future__ import annotations

import random
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labstaff.figures import BLUE, GREEN, GRID, INK, ORANGE, PINK, Recipe

SLOTS, BLOCK, LIMIT, N_REQUESTS = 8192, 16, 2048, 300
POLICIES = ("max", "pow2", "oracle", "paged")
SHARES = {"token": BLUE, "reserved": GREEN, "internal": ORANGE, "external": PINK, "free": GRID}

Trace = list[tuple[int, int, int]]
"""Requests: the tokens of the prompt, of the output, and the most allowed."""


def shares_of_slots(trace: Trace, policy: str) -> dict[str, float]:
    """The shares of all slots over all steps, by use, while `trace` is served in order of arrival.

    A step gives each running request a token, then places waiting requests with their first token, then counts. A
    contiguous request gets the lowest run that fits; a paged one that finds no block preempts the request placed last.
    """
    waiting, running = list(range(len(trace))), list[int]()
    tokens, start, size = dict[int, int](), dict[int, int](), dict[int, int]()
    used, n_steps = dict.fromkeys(SHARES, 0), 0

    def grow(request: int, count: int) -> bool:
        needed = -(-count // BLOCK) * BLOCK
        if sum(size.values()) - size.get(request, 0) + needed > SLOTS:
            return False
        size[request] = needed
        return True

    def place(request: int) -> bool:
        if policy == "paged":
            return grow(request, trace[request][0] + 1)
        lowest, needed = 0, reserved(trace[request], policy)
        for other in sorted(running, key=start.__getitem__):
            if start[other] - lowest >= needed:
                break
            lowest = start[other] + size[other]
        if lowest + needed > SLOTS:
            return False
        start[request], size[request] = lowest, needed
        return True

    def leave(request: int) -> None:
        running.remove(request)
        del size[request]

    while waiting or running:
        for request in list(running):
            while policy == "paged" and request in running and not grow(request, tokens[request] + 1):
                waiting.insert(0, running[-1])
                leave(running[-1])
            tokens[request] += 1  # of a preempted request too: it starts again with its prompt
        while waiting and place(waiting[0]):
            tokens[waiting[0]] = trace[waiting[0]][0] + 1
            running.append(waiting.pop(0))
        for request in running:
            final = sum(trace[request][:2])
            used["token"] += tokens[request]
            used["reserved"] += min(size[request], final) - tokens[request]
            used["internal"] += max(size[request] - final, 0)
        left = SLOTS - sum(size.values())
        in_pieces = bool(waiting) and policy != "paged" and left >= reserved(trace[waiting[0]], policy)
        used["external" if in_pieces else "free"] += left
        n_steps += 1
        for request in [each for each in running if tokens[each] == sum(trace[each][:2])]:
            leave(request)
    return {name: count / (n_steps * SLOTS) for name, count in used.items()}


def reserved(request: tuple[int, int, int], policy: str) -> int:
    """The slots that "max", "pow2" or "oracle" reserves for a request."""
    prompt, output, limit = request
    if policy == "max":
        return limit
    if policy == "pow2":
        return min(prompt + (1 << (output - 1).bit_length()), limit)
    return prompt + output


def slots_data() -> dict[str, Any]:
    """What slots are used for under each policy, on a trace drawn at random with a fixed seed."""
    draw = random.Random(9)
    trace = [(draw.randint(8, 250), draw.randint(8, 250), LIMIT) for _ in range(N_REQUESTS)]
    shares = {policy: shares_of_slots(trace, policy) for policy in POLICIES}
    setting = {"requests": N_REQUESTS, "slots": SLOTS, "block_size": BLOCK, "limit": LIMIT, "lengths": "8 to 250"}
    return setting | {"mean_tokens": sum(p + o for p, o, _ in trace) / N_REQUESTS, "shares": shares}


def draw_slots(data: dict[str, Any]) -> Figure:
    """Draw one bar for each policy, stacked from its shares."""
    figure, ax = plt.subplots(figsize=(5.0, 4.0))
    hatches = {"token": "", "reserved": "//", "internal": "..", "external": "xx", "free": ""}
    for place, shares in enumerate(data["shares"].values()):
        left = 0.0
        for name, colour in SHARES.items():
            width = 100 * shares[name]
            label = name if place == 0 else None
            ax.barh(
                place, width, left=left, color=colour, edgecolor=INK, linewidth=0.6, hatch=hatches[name], label=label
            )
            left += width
        ax.text(101, place, f"{100 * shares['token']:.0f} %", va="center", size=9)
    ax.set_yticks(range(len(data["shares"])), list(data["shares"]))
    ax.invert_yaxis()
    ax.set(xlim=(0, 112), xlabel="share of all slots, %; at the right, those with a token")
    ax.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100"])
    ax.grid(visible=False)
    ax.legend(
        loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=5, fontsize=8.5, columnspacing=1.0, handlelength=1.4
    )
    return figure


FIGURES = {"09_slots": Recipe(slots_data, draw_slots)}
