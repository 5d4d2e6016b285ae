"""Jobs through Lab 13's server: the same words as one alone, endings, and what a wrong plan leaves unharmed."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from labkit.chat.together import spec_of
from labkit.endpoint import jobs as module
from labkit.endpoint.jobs import Job, Jobs, TogetherJobs
from labkit.labs.catalog import find_lab, solution_file
from labkit.model.attention import CachedAttention
from labkit.model.generate import generate
from labkit.serving.engine import token_bytes
from tests.labkit.model.tiny import SIZES, tiny_llama

LLAMA = tiny_llama()
PROMPTS = [list(range(10, 50)), [*range(10, 40), 7, 8], [3, 4, 5]]
NBYTES = 60 * 8 * token_bytes(spec_of(SIZES), 8)


@pytest.fixture(scope="module")
def server():
    """The solution's Server."""
    spec = importlib.util.spec_from_file_location("serving_of_the_solution", solution_file(find_lab("13")))
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.Server


def served(jobs, requests):
    """The jobs for requests (prompt, max_new, ends), after they have ended."""

    async def run():
        loop = asyncio.get_running_loop()
        found = [Job(n, p, most, frozenset(ends), loop) for n, (p, most, ends) in enumerate(requests, 1)]
        for job in found:
            jobs.submit(job)
        jobs.start()
        for job in found:
            while await asyncio.wait_for(job.events.get(), 60) is not None:
                pass
        return found

    try:
        return asyncio.run(run())
    finally:
        jobs.stop()


@pytest.fixture(scope="module")
def alone(server):
    """The tokens after a prompt that is served alone: eight bits a number are not torch's words."""

    def words(prompt, n):
        (job,) = served(TogetherJobs(LLAMA, server, NBYTES, str), [(prompt, n, ())])
        return job.tokens

    return words


def test_one_after_the_other_with_torchs_own_attention():
    for job in served(Jobs(LLAMA), [(prompt, 6, ()) for prompt in PROMPTS]):
        assert job.tokens == [token for token, _ in generate(LLAMA, job.prompt, CachedAttention(), 6)]


def test_everybody_gets_the_words_of_one_alone(server, alone):
    jobs = TogetherJobs(LLAMA, server, NBYTES, str)
    n_new = module.PIECE + 5
    for job in served(jobs, [(prompt, n_new, ()) for prompt in PROMPTS]):
        assert (job.ended, job.tokens) == ("length", alone(job.prompt, n_new))
    assert jobs.state()["shared"] == 0


def test_an_end_token_is_not_part_of_the_answer(server, alone):
    words = alone(PROMPTS[0], 6)
    (job,) = served(TogetherJobs(LLAMA, server, NBYTES, str), [(PROMPTS[0], 20, words[3:4])])
    assert (job.ended, job.tokens) == ("stop", words[: words.index(words[3])])


@pytest.mark.parametrize("wrong", [1, 11])
def test_a_wrong_plan_ends_the_request_that_it_names(server, alone, wrong):
    """And not the one whose number begins like its."""

    class Wrong(server):
        """Plans other tokens for one request."""

        def plan(self):
            plan = super().plan()
            for piece in plan["work"]:
                if piece["id"] == wrong:
                    piece["tokens"] = [0] * len(piece["tokens"])
            return plan

    reported = []
    jobs = TogetherJobs(LLAMA, Wrong, NBYTES, lambda error: reported.append(str(error)) or "wrong plan")
    found = served(jobs, [(prompt, 5, ()) for prompt in (PROMPTS * 4)[: wrong + 2]])
    assert f"request {wrong}" in reported[0] and "its text has" in reported[0]
    named = found.pop(wrong)
    assert (named.ended, named.error) == ("error", "wrong plan")
    for job in found:
        assert (job.ended, job.tokens) == ("length", alone(job.prompt, 5))


def test_a_server_that_always_fails_ends_everybody(server):
    class Broken(server):
        """Cannot plan."""

        def plan(self):
            raise ZeroDivisionError

    found = served(TogetherJobs(LLAMA, Broken, NBYTES, lambda error: type(error).__name__), [(PROMPTS[2], 5, ())] * 2)
    assert [(job.ended, job.error) for job in found] == [("error", "ZeroDivisionError")] * 2


def test_blocks_of_a_client_that_left_are_free(server, alone):
    jobs = TogetherJobs(LLAMA, server, NBYTES, str)

    async def run():
        loop = asyncio.get_running_loop()
        left, stays = (Job(n, prompt, 60, frozenset(), loop) for n, prompt in enumerate(PROMPTS[:2]))
        jobs.submit(left)
        jobs.submit(stays)
        jobs.start()
        await asyncio.wait_for(left.events.get(), 60)
        left.end("left")
        while await asyncio.wait_for(stays.events.get(), 60) is not None:
            if len(stays.tokens) > 2 * module.PIECE:
                assert not jobs.state()["jobs"][1]["blocks"]
        return left, stays

    left, stays = asyncio.run(run())
    jobs.stop()
    assert stays.tokens == alone(PROMPTS[1], 60)
    assert 0 < len(left.tokens) < 60
    assert jobs.state()["jobs"][0]["state"] == "done: as long as asked for"
