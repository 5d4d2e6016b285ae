"""The engine of Lab 13: completions and counts of a trace, and each check of a plan failing once."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest
import torch

from labkit.labs.catalog import find_lab, solution_file, solution_folder
from labkit.meters.sessions import run_calls
from labkit.serving.dense import dense_completion, least_margin
from labkit.serving.drive import serve_plans
from labkit.serving.engine import serve, settings_of
from labkit.serving.locations import Locations, Text
from labkit.serving.model import SPEC
from labkit.serving.player import Piece
from labkit.serving.records import held_while_serving, record_plans, record_serving
from labkit.serving.requests import KINDS, LIMITS, MARGIN, Request, make_trace
from labkit.testing.sessions import Session
from labstaff.authoring.alternatives import variant_text
from labstaff.authoring.board import SEED

LAB = find_lab("13")
SERVERS = (
    solution_folder(LAB) / "servers" / "first_come.py",
    solution_folder(LAB) / "alternatives" / "reserving.py",
    None,
)
NBYTES, MAX_TOKENS = 28_000, 48


def module_of(variant=None):
    """The solution's module, or another server's."""
    module = ModuleType("serving")
    text = variant_text(LAB, variant) if variant else solution_file(LAB).read_text(encoding="utf-8")
    exec(compile(text, str(variant or solution_file(LAB)), "exec"), module.__dict__)
    return module


RIGHT = module_of()


class Tampered:
    """The solution's server with changed methods: each returns `change(server, name, result)`."""

    def __init__(self, change, nbytes=NBYTES, max_tokens=MAX_TOKENS):
        self.inner, self.change = RIGHT.Server(SPEC, nbytes, max_tokens), change
        self.n_plans = 0

    def __getattr__(self, name):
        def call(*args):
            result = getattr(self.inner, name)(*args)
            self.n_plans += name == "plan"
            return self.change(self, name, result)

        return call


@cache
def trace_of(kind):
    """The board's trace of this kind."""
    return make_trace(kind, SEED)


def text_of(n, seed=0):
    return tuple((seed * 17 + i * 29 + i * i) % 64 for i in range(n))


def refused(server, trace, message, nbytes=NBYTES, max_tokens=MAX_TOKENS, **options):
    with pytest.raises(AssertionError, match=message):
        serve(server, trace, SPEC, nbytes, max_tokens, **options)


def with_plans(change):
    """A server whose plans `change(plan, number)` has changed."""

    def changed(server, name, result):
        return change(result, server.n_plans) if name == "plan" else result

    return Tampered(changed)


def clear_request(id=0, arrival=0, n=20, max_new=6):
    """A request whose completion is far from any tie; another name gives another prefix."""
    seeds = (seed for seed in range(1 + id, 100, 2) if least_margin(text_of(n, seed), max_new) > MARGIN)
    return Request(id, arrival, text_of(n, next(seeds)), max_new)


ONE = [clear_request()]
TWO = [clear_request(), clear_request(1, 0, 30)]


class TestPlans:
    """A wrong plan fails with a message."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda plan, n: None, "plan\\(\\) returns in step 0 is None, expected a dict with the keys copies, work"),
            (lambda plan, n: plan | {"more": 1}, "has more, which the handout does not name"),
            (lambda plan, n: plan | {"work": 3}, "work of step 0: plan\\(\\) is an int, expected a list of dicts"),
            (
                lambda plan, n: plan | {"copies": [(1, 2, 3)]},
                "asks for the copy \\(1, 2, 3\\), expected \\(old, new\\)",
            ),
            (lambda plan, n: plan | {"copies": [(0, 99)]}, "names the blocks \\[99\\]: there are blocks 0 to 20"),
            (lambda plan, n: plan | {"work": []}, "step 0: nothing is computed, and 1 requests are not done"),
        ],
    )
    def test_form(self, change, message):
        refused(with_plans(change), ONE, message)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"id": 9}, "the work for request 9: there is no such request, or it is done"),
            ({"id": []}, "has the id \\[\\], expected that of a request"),
            ({"start": 0.0}, "has the start 0.0, expected a position"),
            ({"start": -1}, "computes tokens -1 to 18, and 20 are known"),
            ({"start": 5}, "computes tokens 5 to 24, and 20 are known"),
            ({"tokens": []}, "has no tokens"),
            ({"tokens": [1.5]}, "holds other things than ints"),
            ({"tokens": [0] * 49}, "step 0 computes 49 tokens, more than max_tokens, 48"),
            ({"tokens": list(text_of(20, 50))}, "at position 0, where its text has"),
            ({"blocks": [0, 1]}, "has 2 blocks of 8 places for 20 tokens: 3 are needed"),
            ({"blocks": [0, 1, 1]}, "has a block twice"),
            ({"blocks": [0, 1, 21]}, "names the blocks \\[21\\]: there are blocks 0 to 20"),
        ],
    )
    def test_a_piece_of_work(self, change, message):
        refused(with_plans(lambda plan, n: plan | {"work": [plan["work"][0] | change]}), ONE, message)

    def test_a_request_twice(self):
        refused(with_plans(lambda plan, n: plan | {"work": plan["work"] * 2}), ONE, "request 0 comes twice in one step")


class TestLocations:
    """A location is read only by the request that wrote it, or after the same beginning."""

    def test_a_location_never_written(self):
        def later(plan, n):
            piece = plan["work"][0]
            return plan | {"work": [piece | {"start": 16, "tokens": piece["tokens"][16:]}]}

        refused(with_plans(later), ONE, "block 0, place 0 is read as token 0 of request 0, \\d+, and holds nothing")

    def test_a_location_of_another_request(self):
        def of_another(plan, n):
            tables = {piece["id"]: piece["blocks"] for piece in plan["work"]}
            for piece in plan["work"]:
                if n == 3 and piece["id"] == 1:
                    piece["blocks"] = [tables[0][0], *piece["blocks"][1:]]
            return plan

        message = (
            "step 2: block 0, place 0 is read as token 0 of request 1, \\d+, but holds token 0 of request 0, written in"
        )
        refused(with_plans(of_another), TWO, message)

    def test_one_location_for_two_requests(self):
        def one_table(plan, n):
            for piece in plan["work"]:
                piece["blocks"] = plan["work"][-1]["blocks"]
            return plan

        trace = [clear_request(0, 0, 10), clear_request(1, 0, 14)]
        message = "step 0: block 2, place 0 is written twice, as token 0 of request 1 and token 0 of request 0"
        refused(with_plans(one_table), trace, message)

    def test_overwritten_while_it_is_read(self):
        def into_another(plan, n):
            if n == 2 and len(plan["work"]) == 2:
                first, second = plan["work"]
                second["blocks"] = [*second["blocks"][:-1], first["blocks"][0]]
            return plan

        message = "is read as token \\d+ of request 0, \\d+, but the same step writes token 28 of request 1 there"
        refused(with_plans(into_another), TWO, message)


def own_first_block(plan):
    """Request 1 computes one block, then reads the rest of request 0's blocks, which have another prefix."""
    for piece in plan["work"]:
        if piece["id"] == 1 and piece["start"] == 0:
            piece.update(tokens=piece["tokens"][:8])
        elif piece["id"] == 1 and piece["start"] == 23:
            piece.update(start=24, tokens=[9], blocks=[piece["blocks"][0], 1, 2, piece["blocks"][3]])
    return plan


def test_the_same_tokens_after_another_beginning():
    same = text_of(16, 3)
    trace = [Request(0, 0, (*text_of(8, 1), *same, 7), 3), Request(1, 0, (*text_of(8, 2), *same, 9), 3)]
    scheduler = module_of().Scheduler(21, 8, 48)
    plan = scheduler.plan
    scheduler.plan = lambda: own_first_block(plan())
    with pytest.raises(AssertionError, match="and holds that after another prefix"):
        serve_plans(scheduler, trace, 21, 8, 48)


def test_one_equal_token_is_not_another_beginning():
    """A block that another request has taken may hold an equal token at the same place by chance: it was not found."""
    locations = Locations(2, 4)
    texts = [Text(locations, tokens) for tokens in ([1, 2, 3, 4], [5, 2, 6, 7])]
    locations.write([Piece(0, 0, (1, 2, 3, 4), (0,))], {0: texts[0]}, 0)
    locations.write([Piece(1, 0, (5,), (0,))], {1: texts[1]}, 1)
    with pytest.raises(AssertionError, match="until it is taken for something new"):
        locations.assert_readable(Piece(1, 2, (6,), (0,)), texts[1], 2)


class TestServing:
    """Completions and counts of a trace, and servers that fail."""

    @pytest.mark.parametrize("variant", SERVERS, ids=["first_come", "reserving", "solution"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_completions_are_those_of_the_dense_model(self, kind, variant):
        trace = trace_of(kind)
        served = serve(module_of(variant).Server(SPEC, **LIMITS[kind]), trace, SPEC, **LIMITS[kind])
        assert served.completions == {each.id: dense_completion(each.prompt, each.max_new) for each in trace}
        assert served.tokens == sum(each.max_new for each in trace)
        assert served.peak_blocks == max(each.blocks for each in served.history) <= 21
        assert served.peak_bytes == served.peak_blocks * 8 * 160 <= LIMITS[kind]["nbytes"]
        computed = sum(each.tokens for each in served.history)
        known = sum(len(each.prompt) + each.max_new - 1 for each in trace)
        assert computed == known - served.prefix_tokens + served.again
        assert (served.prefix_tokens > 0) == (variant != SERVERS[0])

    def test_bytes_read(self):
        served = serve(RIGHT.Server(SPEC, NBYTES, 48), ONE, SPEC, NBYTES, 48)
        assert served.bytes_read == 160 * sum(range(20, 26))
        assert served.bytes_read_a_token * 6 == served.bytes_read

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"bits": 3}, "says bits 3: one of"),
            ({"bits": True}, "says bits True: one of"),
            ({"block_size": 0}, "says block_size 0, expected at least 1"),
            ({"num_blocks": 22}, "22 blocks of 8 tokens in 8 bits weigh 28,160 bytes, and the budget is 28,000"),
            ({"bits": 32}, "weigh 86,016 bytes"),
        ],
    )
    def test_settings(self, settings, message):
        refused(Tampered(lambda server, name, r: r | settings if name == "settings" else r), ONE, message)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda o: None, "attend for request 0 in layer 0 returns None, expected a tensor"),
            (lambda o: o[:1], "returns shape \\(1, 4, 16\\), expected \\(20, 4, 16\\)"),
            (lambda o: o.double(), "returns float64, expected float32, as q"),
            (lambda o: o * torch.nan, "numbers that are NaN or infinite"),
            (
                lambda o: o * 0,
                "token 0 of the completion of request 0 is \\d+, expected \\d+\nUsual cause: every plan was",
            ),
        ],
    )
    def test_attention(self, change, message):
        refused(Tampered(lambda server, name, r: change(r) if name == "attend" else r), ONE, message)

    def test_too_few_bits(self):
        text = solution_file(LAB).read_text(encoding="utf-8").replace('else 8, "block_size"', 'else 4, "block_size"')
        module = ModuleType("serving")
        exec(text, module.__dict__)
        refused(module.Server(SPEC, NBYTES, 48), trace_of("chat"), "or too few bits")

    def test_starving(self):
        scheduler = RIGHT.Scheduler(8, 4, 8)
        plan, waits = scheduler.plan, []

        def the_rest_first():
            waits[:] = [one for one in scheduler._waiting if one.id == 0] or waits
            for one in waits:
                if one in scheduler._waiting:
                    scheduler._waiting.remove(one)
            found = plan()
            if not found["work"]:
                scheduler._waiting.extend(waits)
                found = plan()
            return found

        scheduler.plan = the_rest_first
        trace = [Request(i, 0, (i, 1, 2), 2) for i in range(30)]
        with pytest.raises(AssertionError, match="request 0 has been overtaken by 10 that came later"):
            serve_plans(scheduler, trace, 8, 4, 8)

    def test_never_done(self):
        piece = {"id": 0, "start": 0, "tokens": list(ONE[0].prompt)[:19], "blocks": [0, 1, 2]}
        message = "after \\d+ steps 1 requests are not done; one after the other, all would"
        refused(with_plans(lambda plan, n: {"copies": [], "work": [dict(piece)]}), ONE, message)

    def test_a_leaked_block_is_found(self):
        scheduler = RIGHT.Scheduler(8, 4, 16)
        advance = scheduler.advance

        def keep_a_block(sampled):
            if not scheduler._blocks._tables.get("lost"):
                scheduler._blocks.allocate("lost", [63])
            advance(sampled)

        scheduler.advance = keep_a_block
        message = "all 8 blocks are free, and one that needs all of them is never computed whole: plans name 0 blocks"
        with pytest.raises(AssertionError, match=message):
            serve_plans(scheduler, [Request(0, 0, (1, 2, 3), 3)], 8, 4, 16)

    def test_a_request_for_the_whole_cache_that_is_refused(self):
        class Stingy(RIGHT.Scheduler):
            """A server that uses one block less than it could."""

            def submit(self, id, prompt, max_new):
                if len(prompt) > 27:
                    raise ValueError(f"request {id!r} is too long")
                super().submit(id, prompt, max_new)

        with pytest.raises(
            AssertionError, match="that needs all of them, 31 tokens and 1 to follow, is refused: request 1"
        ):
            serve_plans(Stingy(8, 4, 16), [Request(0, 0, (1, 2, 3), 3)], 8, 4, 16)

    def test_bytes_held_while_serving(self):
        held = held_while_serving(RIGHT.Server, SPEC, NBYTES, 16, [(list(range(30)), 3), (list(range(5, 30)), 2)])
        assert held["tokens"] == 32 + 26
        assert max(held["live_bytes"]) <= NBYTES
        assert set(held["live_bytes"]) == {21 * 8 * 160}


def never(calls):
    raise AssertionError(f"{calls[-1][0]}, call {len(calls)}, is not in the record")


class TestRecords:
    """The player makes the calls of the checks, in their order: what it recorded is all that they ask for."""

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_served_trace(self, kind):
        trace, sizes = trace_of(kind), (SPEC, *LIMITS[kind].values())
        told = record_serving(RIGHT.Server, *sizes, trace, metered=True)
        want = serve(RIGHT.Server(*sizes), trace, *sizes).counts
        assert serve(Session(never, told["record"]), trace, *sizes).counts == want
        assert told["held"] == want["cache_bytes"] and told["kept"] == 0

    def test_planned_traces(self):
        trace, sizes = trace_of("chat"), (20, 8, 48)  # few blocks: requests give way
        record = record_plans(lambda: RIGHT.Scheduler(*sizes), trace, 48, sizes[:2])
        assert serve_plans(Session(never, record), trace, *sizes).again > 0
        sizes = SPEC, NBYTES, MAX_TOKENS
        record = record_plans(lambda: RIGHT.Server(*sizes), trace, MAX_TOKENS)
        session = Session(never, record)
        _, block_size, num_blocks = settings_of(session, SPEC, NBYTES)
        serve_plans(session, trace, num_blocks, block_size, MAX_TOKENS)

    @pytest.mark.parametrize("method", ["settings", "submit", "plan", "copy", "write", "attend", "advance"])
    def test_the_call_that_raises_is_made_again(self, method):
        """The record ends before it, and the checks see the exception itself."""

        def change(server, name, result):
            if name == method:
                raise LookupError(method)
            return result | {"copies": [(5, 6)]} if name == "plan" else result

        def make(spec, nbytes, max_tokens):
            return Tampered(change, nbytes, max_tokens)

        sizes = SPEC, NBYTES, MAX_TOKENS
        record = record_serving(make, *sizes, ONE)["record"]
        with pytest.raises(LookupError, match=method):
            serve(Session(lambda calls: run_calls(make(*sizes), calls), record), ONE, *sizes)
