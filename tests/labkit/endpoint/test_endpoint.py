"""The endpoint as its clients see it: the openai client, a browser, and a signal. Bounded in count and time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
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
    *streamed, streamed_usage = answer(client, stream=True)
    assert (streamed, streamed_usage.total_tokens) == ([text, ended], usage.total_tokens)
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


def test_usage_tells_what_was_found_in_the_cache(client):
    """Whole blocks of the prompt, whose last token is always computed."""
    long = [{"role": "user", "content": "Count these words, " * 8}]
    first, again = (answer(client, messages=long, max_tokens=1)[2] for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < first.prompt_tokens // 2
    assert first.prompt_tokens - 16 <= again.prompt_tokens_details.cached_tokens < first.prompt_tokens


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
