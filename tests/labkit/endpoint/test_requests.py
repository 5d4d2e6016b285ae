"""Which requests the endpoint serves, and how it refuses the others: as OpenAI does, by status, field and code."""

from __future__ import annotations

import pytest
from openai import APIStatusError, OpenAI
from starlette.testclient import TestClient

from labkit.endpoint.api import make_app
from labkit.endpoint.jobs import Jobs
from tests.labkit.model.tiny import tiny_llama, tiny_text

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
USER = {"role": "user"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
MANY = 400 * "word "


@pytest.fixture(scope="module")
def http():
    """An application with a tiny random model and torch's own attention, called without a network."""
    text = tiny_text()
    text.template = TEMPLATE
    with TestClient(make_app(Jobs(tiny_llama()), text, "tiny")) as client:
        yield client


@pytest.fixture(scope="module")
def client(http):
    return OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=http)


def asked(client, **changes):
    """The words of a chat completion; what the client library does not know goes into `extra_body`."""
    given = {"model": "tiny", "messages": QUESTION, "max_tokens": 3} | changes
    return client.chat.completions.create(model=given.pop("model"), messages=given.pop("messages"), extra_body=given)


PARTS = [{"type": "text", "text": "Why is "}, {"type": "text", "text": "the sky blue?"}]
SERVED = {
    "temperature 0": {"temperature": 0},
    "OpenAI's defaults": {"temperature": 1, "top_p": 1, "n": 1, "presence_penalty": 0, "logprobs": False},
    "top_p": {"top_p": 0.1},
    "seed and user": {"seed": 7, "user": "ann"},
    "nulls": {"temperature": None, "tools": None, "stop": None, "response_format": None, "stream": None},
    "newer name of max_tokens": {"max_tokens": None, "max_completion_tokens": 3},
    "text": {"response_format": {"type": "text"}},
    "parts": {"messages": [USER | {"content": PARTS}]},
    "a message as the client library gives it back": {
        "messages": [QUESTION[0] | {"refusal": None, "tool_calls": None}]
    },
}


@pytest.mark.parametrize("changes", SERVED.values(), ids=SERVED)
def test_served_as_the_same_words_greedily(client, changes):
    assert asked(client, **changes).choices[0].message.content == asked(client).choices[0].message.content


def test_developer_is_the_newer_name_of_system(client):
    words = [
        asked(client, messages=[{"role": role, "content": "Be brief."}, *QUESTION]) for role in ("system", "developer")
    ]
    assert words[0].choices == words[1].choices
    assert words[0].choices != asked(client).choices


REFUSED = {
    "temperature, a text": ({"temperature": "hot"}, "temperature", "Expected float, got str"),
    "temperature, true": ({"temperature": True}, "temperature", "Expected float, got bool"),
    "temperature, too high": ({"temperature": 3}, "temperature", "<= 2.0"),
    "sampling": ({"temperature": 0.7}, "temperature", "must be 0 or 1, or left out, since decoding is greedy: not 0.7"),
    "top_p, too high": ({"top_p": 1.5}, "top_p", "<= 1.0"),
    "penalty": ({"frequency_penalty": 0.5}, "frequency_penalty", "decoding is greedy"),
    "two answers": ({"n": 2}, "n", "must be 1, or left out, since decoding is greedy: not 2"),
    "logprobs": ({"logprobs": True}, "logprobs", "must be false"),
    "no tools": ({"tools": []}, "tools", "not supported"),
    "tool_choice": ({"tool_choice": "none"}, "tool_choice", "not supported"),
    "JSON": ({"response_format": {"type": "json_object"}}, "response_format.type", "Invalid value 'json_object'"),
    "usage without a stream": (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        "only allowed with stream",
    ),
    "stream, a text": ({"stream": "yes"}, "stream", "Expected bool"),
    "max_tokens, 0": ({"max_tokens": 0}, "max_tokens", ">= 1"),
    "max_tokens, half": ({"max_tokens": 1.5}, "max_tokens", "Expected int"),
    "max_tokens, too many": ({"max_tokens": 10_000}, "messages", "together at most 512 fit"),
    "max_tokens, beyond 64 bits": ({"max_tokens": 10**30}, "messages", "together at most 512 fit"),
    "max_tokens twice": ({"max_completion_tokens": 3}, "max_tokens", "exclude each other"),
    "stop, empty": ({"stop": [""]}, "stop[0]", "length >= 1"),
    "stop, five": ({"stop": list("abcde")}, "stop", "length <= 4"),
    "no messages": ({"messages": []}, "messages", "length >= 1"),
    "content, none": ({"messages": [USER]}, "messages[0].content", "missing required field content"),
    "content, null": ({"messages": [USER | {"content": None}]}, "messages[0].content", "missing required field"),
    "content, no parts": ({"messages": [USER | {"content": []}]}, "messages[0].content", "length >= 1"),
    "picture": (
        {"messages": [USER | {"content": [PICTURE]}]},
        "messages[0].content[0].type",
        "Invalid value 'image_url'",
    ),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "Invalid enum value 'tool'"),
    "long prompt": ({"messages": [USER | {"content": MANY}]}, "messages", "together at most 512 fit"),
}


@pytest.mark.parametrize(("changes", "param", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_by_field(client, changes, param, says):
    with pytest.raises(APIStatusError) as raised:
        asked(client, **changes)
    assert raised.value.status_code == 400
    assert (raised.value.body["type"], raised.value.body["param"]) == ("invalid_request_error", param)
    assert says in raised.value.body["message"]


def test_another_model_is_not_found(client):
    with pytest.raises(APIStatusError) as raised:
        asked(client, model="gpt")
    assert (raised.value.status_code, raised.value.body["code"]) == (404, "model_not_found")


BODIES = {
    "empty": (b"", 400),
    "half": (b"{", 400),
    "list": (b"[1]", 400),
    "nan": (b'{"temperature": NaN}', 400),
    "latin-1": (b'{"prompt": "caf\xe9"}', 400),
    "half of a surrogate pair": (rb'{"model": "tiny", "prompt": "caf\udce9"}', 400),
    "surrogate pair cut": (rb'{"model": "tiny", "prompt": "\ud83d"}', 400),
    "deep": (b"[" * 100_000, 400),
    "deep field": (b'{"model": "tiny", "prompt": "a", "tools": ' + b'[{"a":' * 100_000, 400),
    "nested": (b'{"model": "tiny", "prompt": "a", "tools": ' + b"[" * 300 + b"]" * 300 + b"}", 400),
    "huge": (b"x" * (2 << 20), 413),
    "long number": (b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 6000 + b"}", 400),
    "prompt, empty": (b'{"model": "tiny", "prompt": ""}', 400),
    "field of a chat": (b'{"model": "tiny", "prompt": "a", "messages": []}', 400),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_body_that_cannot_be_read_is_refused(http, path, body, status):
    answer = http.post(path, content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def test_health(http):
    assert http.get("/health").status_code == 200
    assert http.get("/nowhere").json()["error"]["type"] == "invalid_request_error"


def test_usage_is_null_until_the_last_event_of_a_stream(client):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *before, last = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=3, **options)
    assert {part.usage for part in before} == {None}
    assert last.usage == asked(client).usage
    assert last.usage.prompt_tokens_details.cached_tokens == 0
