"""The endpoint as its clients see it: the openai client, a browser, and a signal. Bounded in count and time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.chat.together import spec_of
from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.serving.engine import token_bytes
from tests.labkit.model.tiny import SIZES, tiny_llama, tiny_text, write_tiny

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def address():
    """Of an endpoint with the solution's server and a tiny random model."""
    import importlib.util

    import uvicorn

    from labkit.endpoint.api import make_app
    from labkit.endpoint.jobs import TogetherJobs

    spec = importlib.util.spec_from_file_location("serving_at_the_endpoint", solution_file(find_lab("13")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = tiny_text()
    text.template = TEMPLATE
    jobs = TogetherJobs(tiny_llama(), module.Server, 100 * 8 * token_bytes(spec_of(SIZES), 8), str)
    config = uvicorn.Config(make_app(jobs, text, "tiny"), "127.0.0.1", 0, log_level="warning")
    socket, server = config.bind_socket(), uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(address):
    from openai import OpenAI

    return OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)


def answer(client, stream=False, **options):
    """The text, why it ended, and the usage of a chat completion."""
    given = {"model": "tiny", "messages": QUESTION, "max_tokens": 24} | options
    if not stream:
        whole = client.chat.completions.create(**given)
        return whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage
    parts = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    (ended,) = {part.choices[0].finish_reason for part in parts if part.choices} - {None}
    return text, ended, parts[-1].usage


def test_streamed_and_whole_answers_are_the_same(client):
    assert [model.id for model in client.models.list().data] == ["tiny"]
    text, ended, usage = answer(client)
    assert text and ended == "length"
    assert usage.completion_tokens == 24 and usage.total_tokens == usage.prompt_tokens + 24
    *streamed, its_usage = answer(client, stream=True)
    assert streamed == [text, ended] and its_usage.total_tokens == usage.total_tokens
    assert client.completions.create(model="tiny", prompt="The sky", max_tokens=5).usage.completion_tokens == 5


def test_a_stop_is_not_part_of_the_answer(client):
    text, _, _ = answer(client)
    stop = text[6:9]
    for stream in (False, True):
        got, ended, _ = answer(client, stream, stop=["never there", stop])
        assert (got, ended) == (text[: text.index(stop)], "stop")


def test_sixteen_at_once_of_which_some_leave(client, address):
    expected, _, _ = answer(client)

    def one(number):
        if number % 4:
            return answer(client, stream=bool(number % 2))[0]
        with client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=200, stream=True) as stream:
            for _ in zip(range(3), stream, strict=False):
                pass
        return expected

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16))) == [expected] * 16
    for _ in range(600):  # the last pieces of clients that have left
        state = json.load(urllib.request.urlopen(f"{address}/state", timeout=10))
        if not any(job["blocks"] for job in state["jobs"]):
            break
    assert not any(job["blocks"] for job in state["jobs"])
    assert sum(job["state"] == "its client has left" for job in state["jobs"]) == 4


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"messages": [{"role": "user", "content": "word " * 400}]}, 400, "together at most"),
        ({"messages": []}, 400, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, 400, r"messages\[0\] must have"),
        ({"max_tokens": 0}, 400, "max_tokens must be"),
        ({"max_tokens": 10_000}, 400, "together at most"),
        ({"n": 2}, 400, "n must be 1 with temperature 0"),
        ({"n": 9, "temperature": 1}, 400, "n must be an integer from 1 to 8"),
        ({"n": True, "temperature": 1}, 400, "n must be an integer from 1 to 8"),
        ({"seed": 0.5}, 400, "seed must be an integer"),
        ({"presence_penalty": 1}, 400, "presence_penalty must be 0 here"),
        ({"stop": [""]}, 400, "stop must be"),
        ({"logprobs": True}, 400, "logprobs must be false here"),
        ({"temperature": "hot"}, 400, "temperature must be a number from 0 to 2"),
        ({"temperature": -1}, 400, "temperature must be a number from 0 to 2"),
        ({"top_p": True}, 400, "top_p must be a number from 0 to 1"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format must be"),
        ({"tool_choice": "auto"}, 400, 'tool_choice must be "none"'),
        ({"messages": [{"role": "user", "content": None}]}, 400, r"messages\[0\] must have"),
        ({"messages": [{"role": "tool", "content": "3"}]}, 400, r"messages\[0\] must have"),
        ({"max_completion_tokens": 3}, 400, "max_tokens and max_completion_tokens exclude each other"),
        ({"extra_body": {"prompt": "The sky"}}, 400, "prompt is not supported"),
        ({"extra_body": {"stream_options": {}}}, 400, "stream_options is only allowed with stream"),
        ({"model": "gpt"}, 404, "the model is 'tiny'"),
    ],
)
def test_what_cannot_be_served_is_told(client, change, status, says):
    from openai import APIStatusError

    with pytest.raises(APIStatusError, match=says) as raised:
        answer(client, **change)
    assert raised.value.status_code == status
    assert raised.value.body["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[1]", 400),
        (b"[" * 100_000, 400),
        (b"x" * (2 << 20), 413),
        (b'{"stream": "yes"}', 400),
        ('{"model": "tiny", "prompt": "blå"}'.encode("latin-1"), 400),
        (b'{"model": "tiny", "prompt": "\\ud83d"}', 400),
        (b'{"model": "tiny", "prompt": "a", "\\ud83d": 1}', 400),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400),
    ],
    ids=["half", "list", "deep", "huge", "stream", "latin-1", "surrogate", "name", "nan"],
)
def test_a_body_that_is_none_is_refused(address, body, status):
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{address}/v1/completions", body, timeout=30)
    assert raised.value.code == status
    assert json.load(raised.value)["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0, "top_p": 0.9, "seed": 3, "n": 1, "presence_penalty": 0.0},
        {"response_format": {"type": "text"}, "tool_choice": "none", "stop": None},
        {"messages": [{"role": "developer", "content": "Be brief."}, *QUESTION]},
        {"messages": [*QUESTION, {"role": "assistant", "content": None}, *QUESTION]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]},
    ],
    ids=["numbers", "defaults", "developer", "no content", "parts"],
)
def test_what_changes_nothing_is_taken(client, change):
    text, ended, _ = answer(client, **change)
    assert ended == "length"
    if "messages" not in change or len(change["messages"]) == 1:
        assert text == answer(client)[0]


def test_a_prompt_that_was_computed_before_is_in_the_cache(client):
    first, again = (client.completions.create(model="tiny", prompt="b" * 60, max_tokens=2).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens == 0
    assert 0 < again.prompt_tokens_details.cached_tokens < again.prompt_tokens


def test_choices_are_drawn_by_their_seed(client):
    def texts(stream=False, **options):
        given = {"model": "tiny", "messages": QUESTION, "max_tokens": 24, "temperature": 1.0} | options
        if not stream:
            found = client.chat.completions.create(**given)
            assert [choice.index for choice in found.choices] == list(range(given.get("n", 1)))
            assert found.usage.completion_tokens == 24 * len(found.choices)
            return [choice.message.content for choice in found.choices]
        parts = [part.choices[0] for part in client.chat.completions.create(**given, stream=True)]
        return ["".join(part.delta.content or "" for part in parts if part.index == n) for n in range(given["n"])]

    three = texts(seed=5, n=3)
    assert len(set(three)) == 3
    assert texts(seed=5, n=3) == texts(stream=True, seed=5, n=3) == three
    assert texts(seed=5) == three[:1] and texts(seed=6) != three[:1]
    assert texts(seed=-5, top_p=0) == [answer(client)[0]]
    assert texts() != texts()  # each has a seed of its own


def test_it_says_that_it_is_there(address):
    assert urllib.request.urlopen(f"{address}/health", timeout=30).status == 200


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_follows_a_request(client, address, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    problems, elsewhere = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or elsewhere.append(request.url))
    page.goto(address)
    answer(client)
    page.wait_for_selector("text=done: as long as asked for", timeout=20_000)
    assert page.locator("#grid i").count() == 100
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not problems and not elsewhere
    page.close()


def test_ctrl_c_tells_the_clients(tmp_path):
    """`lab serve` itself, with a request under way that would take long."""
    from openai import APIError, OpenAI

    model = write_tiny(tmp_path / "tiny.gguf")
    command = [sys.executable, "-m", "labkit.commands.cli", "serve", "--plain", "--port", "0", "--model", str(model)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    try:
        line = process.stdout.readline()
        address = line.partition("answers at ")[2].partition(",")[0]
        client = OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60)
        stream = client.completions.create(model="tiny", prompt="The sky", max_tokens=500, stream=True)
        next(iter(stream))
        os.kill(process.pid, signal.SIGINT)
        with pytest.raises(APIError, match="the server was stopped"):
            list(stream)
        assert "Traceback" not in process.communicate(timeout=60)[0]
    finally:
        process.kill()
