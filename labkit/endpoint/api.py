"""The HTTP interface: OpenAI's models, completions and chat completions, streamed or whole, and a page."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from labkit.endpoint.jobs import Job, Jobs
from labkit.model.tokenizer import Stream, Text, TextError
from labkit.serving.sampling import Sampling

PAGE = Path(__file__).with_name("page.html")
MAX_BODY = 1 << 20
"""Bytes of a request."""
DEFAULT_NEW = 64
NUMBERS = {"temperature": (0, 2), "top_p": (0, 1)}
INTEGERS = {"seed": (-(2**63), 2**63 - 1), "n": (1, 8)}
"""From which to which number a field may be."""
ONLY: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none",),
    "tools": ([],),
    "logprobs": (False,),
    "store": (False,),
}
"""Fields of which the value that asks for nothing is taken, and no other."""
KNOWN = {
    "model",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stream",
    "stream_options",
    "user",
    *NUMBERS,
    *INTEGERS,
    *ONLY,
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What a role is in the model's chat format."""


class ApiError(Exception):
    """A request that cannot be served: a status, OpenAI's code, and the field that it is about."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status, self.body = status, {"message": message, "type": kind, "param": param, "code": code}


def make_app(jobs: Jobs, text: Text, name: str) -> Starlette:
    """The application; it starts `jobs` and stops them at its end."""
    endpoint = Endpoint(jobs, text, name)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        jobs.start()
        yield
        await asyncio.to_thread(jobs.stop)

    async def told(_request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = ApiError(error.detail, status=error.status_code)
        assert isinstance(error, ApiError)
        return JSONResponse({"error": error.body}, error.status)

    routes = [
        Route("/", endpoint.page),
        Route("/state", endpoint.state),
        Route("/health", endpoint.health),
        Route("/v1/models", endpoint.models),
        Route("/v1/completions", endpoint.completions, methods=["POST"]),
        Route("/v1/chat/completions", endpoint.chat_completions, methods=["POST"]),
    ]
    handlers: dict[Any, Callable[..., Any]] = {ApiError: told, HTTPException: told}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class Endpoint:
    """The handlers of an application."""

    def __init__(self, jobs: Jobs, text: Text, name: str) -> None:
        self.jobs, self.text, self.name = jobs, text, name
        self._numbers = itertools.count(1)
        self._created = int(time.time())

    async def page(self, _request: Request) -> Response:
        """Requests and blocks as they change."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    async def state(self, _request: Request) -> Response:
        """What the page shows."""
        return JSONResponse({"model": self.name, **self.jobs.state()})

    async def health(self, _request: Request) -> Response:
        """Status 200, as soon as requests are served."""
        return Response()

    async def models(self, _request: Request) -> Response:
        """The one model."""
        model = {"id": self.name, "object": "model", "created": self._created, "owned_by": "attention-labs"}
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        body = await _body(request)
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise ApiError("prompt must be a text that is not empty", param="prompt")
        return await self._answer(request, body, self._encode(prompt, "prompt"), is_chat=False)

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await _body(request)
        if not self.text.template:
            raise ApiError("this model has no chat format: use /v1/completions", code="model_not_supported")
        tokens = self._encode(self.text.chat_text(_messages(body.get("messages"))), "messages")
        return await self._answer(request, body, tokens, is_chat=True)

    def _encode(self, text: str, param: str) -> list[int]:
        try:
            return self.text.encode(text)
        except TextError as error:
            raise ApiError(str(error), param=param) from None

    async def _answer(self, request: Request, body: Mapping[str, Any], prompt: list[int], is_chat: bool) -> Response:
        stops, stream = _stops(body.get("stop")), body.get("stream") or False
        max_new = self._max_new(body, len(prompt), is_chat)
        ends, sampling = frozenset(self.text.ends), _sampling(body)
        number, loop = next(self._numbers), asyncio.get_running_loop()
        jobs = [Job(number, prompt, max_new, ends, loop, sampling, choice) for choice in range(body.get("n", 1))]
        jobs[0].others = jobs[1:]
        form = _Form(self.name, number, is_chat)
        self.jobs.submit(jobs[0])
        if stream:
            wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = self._events(jobs, stops, form, wants_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        watch = asyncio.create_task(_leave_with(request, jobs))
        texts = [""] * len(jobs)
        try:
            async for job, part in _all_parts(jobs, self.text, stops):
                texts[job.choice] += part
        finally:
            watch.cancel()
        for job in jobs:
            if job.ended == "error":
                raise ApiError(job.error, code="server_error", status=500)
        return JSONResponse(form.whole(texts, jobs))

    def _max_new(self, body: Mapping[str, Any], n_prompt: int, is_chat: bool) -> int:
        if body.get("model") != self.name:
            raise ApiError(f"the model is {self.name!r}", param="model", code="model_not_found", status=404)
        _check_fields(body, is_chat)
        field = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        asked = body.get(field)
        most = self.jobs.most_tokens()
        if asked is None:
            asked = max(1, min(DEFAULT_NEW, most - n_prompt))
        if type(asked) is not int or asked < 1:
            raise ApiError(f"{field} must be an integer, at least 1", param=field)
        if n_prompt + asked > most:
            told = f"the prompt has {n_prompt} tokens, and {asked} new ones are asked for: together at most {most} fit"
            raise ApiError(told, param=field, code="context_length_exceeded")
        return asked

    async def _events(self, jobs: list[Job], stops: list[str], form: _Form, wants_usage: bool) -> AsyncIterator[str]:
        try:
            async for job, part in _all_parts(jobs, self.text, stops):
                yield _event(form.piece(part, job.choice, None))
            for job in jobs:
                if job.ended == "error":
                    yield _event({"error": ApiError(job.error, code="server_error", status=500).body})
                    return
                yield _event(form.piece("", job.choice, job.ended))
            if wants_usage:
                yield _event(form.piece("", 0, None) | {"choices": [], "usage": form.usage(jobs)})
            yield "data: [DONE]\n\n"
        finally:
            for job in jobs:
                job.end("left")


class _Form:
    """The JSON of a completion or a chat completion."""

    def __init__(self, name: str, number: int, is_chat: bool) -> None:
        self._name, self._is_chat, self._begun = name, is_chat, set[int]()
        self._id, self._created = f"{'chatcmpl' if is_chat else 'cmpl'}-{number}", int(time.time())

    def whole(self, texts: list[str], jobs: list[Job]) -> dict[str, Any]:
        """The whole answer, a choice for each job."""
        choices = []
        for job, text in zip(jobs, texts, strict=True):
            said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
            choices.append({"index": job.choice, **said, "finish_reason": job.ended, "logprobs": None})
        return self._head("chat.completion") | {"choices": choices, "usage": self.usage(jobs)}

    def piece(self, text: str, index: int, ended: str | None) -> dict[str, Any]:
        """A part of a streamed choice."""
        is_first = index not in self._begun
        delta = {"role": "assistant", "content": text} if is_first else {"content": text} if text else {}
        self._begun.add(index)
        said = {"delta": delta} if self._is_chat else {"text": text}
        choice = {"index": index, **said, "finish_reason": ended, "logprobs": None}
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def usage(self, jobs: list[Job]) -> dict[str, Any]:
        """Tokens of the prompt and of all answers, and how many of the prompt were in the cache."""
        n_prompt, n_new = len(jobs[0].prompt), sum(len(job.tokens) for job in jobs)
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
        return usage | {"prompt_tokens_details": {"cached_tokens": jobs[0].cached or 0}}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self._is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}


async def _all_parts(jobs: list[Job], text: Text, stops: list[str]) -> AsyncIterator[tuple[Job, str]]:
    """The texts of several jobs' answers as they come."""
    queue = asyncio.Queue[tuple[Job, str] | None]()

    async def put(job: Job) -> None:
        try:
            async for part in _parts(job, text, stops):
                queue.put_nowait((job, part))
        finally:
            queue.put_nowait(None)

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(put(job))
        n_running = len(jobs)
        while n_running:
            if (found := await queue.get()) is None:
                n_running -= 1
            else:
                yield found


async def _parts(job: Job, text: Text, stops: list[str]) -> AsyncIterator[str]:
    """The text of a job's answer as it comes; it ends before the first of `stops`."""
    stream, held = Stream(text), ""
    while (token := await job.events.get()) is not None:
        held += stream.add(token)
        if found := [at for stop in stops if (at := held.find(stop)) >= 0]:
            job.end("stop")
            yield held[: min(found)]
            return
        n_kept = max((n for stop in stops for n in range(len(stop)) if n and held.endswith(stop[:n])), default=0)
        said, held = held[: len(held) - n_kept], held[len(held) - n_kept :]
        if said:
            yield said
    if held:
        yield held


async def _leave_with(request: Request, jobs: list[Job]) -> None:
    """End the jobs of a client that has left."""
    with contextlib.suppress(ClientDisconnect):
        while not await request.is_disconnected():
            await asyncio.sleep(0.2)
    for job in jobs:
        job.end("left")


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise ApiError(f"a request has at most {MAX_BODY:,} bytes", status=413)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise ApiError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    body = {name: value for name, value in body.items() if value is not None}
    if type(body.get("stream") or False) is not bool:
        raise ApiError("stream must be true or false", param="stream")
    if not isinstance(body.get("stream_options") or {}, dict):
        raise ApiError("stream_options must be an object", param="stream_options")
    return body


def _check_fields(body: Mapping[str, Any], is_chat: bool) -> None:
    """Refuse what is unknown, what is not supported, and numbers that are none or out of range."""
    if unknown := sorted(body.keys() - KNOWN - {"messages" if is_chat else "prompt"}):
        name = unknown[0].encode(errors="replace").decode()
        raise ApiError(f"{name} is not supported", param=name)
    if "stream_options" in body and not body.get("stream"):
        raise ApiError("stream_options is only allowed with stream", param="stream_options")
    if {"max_tokens", "max_completion_tokens"} <= body.keys():
        raise ApiError("max_tokens and max_completion_tokens exclude each other", param="max_tokens")
    for name, (least, most) in (NUMBERS | INTEGERS).items():
        value, kinds = body.get(name, least), (int,) if name in INTEGERS else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            what = "an integer" if name in INTEGERS else "a number"
            raise ApiError(f"{name} must be {what} from {least} to {most}", param=name)
    if body.get("n", 1) > 1 and not body.get("temperature"):
        raise ApiError("n must be 1 with temperature 0, the default: every answer would be the same", param="n")
    for name, values in ONLY.items():
        if name in body and body[name] not in values:
            raise ApiError(f"{name} must be {json.dumps(values[0])} here", param=name)


def _sampling(body: Mapping[str, Any]) -> Sampling:
    """Greedy unless a temperature is given, so that answers are those of `lab chat`; without a seed a random one."""
    seed = body["seed"] if "seed" in body else random.getrandbits(63)
    return Sampling(body.get("temperature", 0), body.get("top_p", 1), seed % 2**64)


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise ApiError("messages must be a list that is not empty", param="messages")
    found = []
    for number, each in enumerate(value):
        given = each.get("role") if isinstance(each, dict) else None
        role = ROLES.get(given) if isinstance(given, str) else None
        content = each.get("content") if role else None
        if isinstance(content, list):  # parts, of which only texts can be read here
            texts = [part.get("text") if isinstance(part, dict) else None for part in content]
            content = "".join(texts) if all(isinstance(part, str) for part in texts) else 0  # type: ignore[arg-type]
        if content is None and role == "assistant":  # as clients send back an answer without a text
            content = ""
        if not isinstance(content, str) or role is None:
            told = f"messages[{number}] must have a role ({', '.join(ROLES)}) and a text as content"
            raise ApiError(told, param="messages")
        found.append({"role": role, "content": content})
    return found


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError("stop must be a text or up to four of them", param="stop")
    return stops


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
