"""The HTTP interface: OpenAI's models, completions and chat completions, streamed or whole, and a page."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
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
from labkit.endpoint.requests import ApiError, Chat, Completion, Fields, read
from labkit.model.tokenizer import Stream, Text

PAGE = Path(__file__).with_name("page.html")
MAX_BODY = 1 << 20
"""Bytes of a request."""
DEFAULT_NEW = 64


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
        Route("/health", endpoint.health),
        Route("/state", endpoint.state),
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

    async def health(self, _request: Request) -> Response:
        """Status 200 while requests are served."""
        return JSONResponse({"status": "ok"})

    async def state(self, _request: Request) -> Response:
        """What the page shows."""
        return JSONResponse({"model": self.name, **self.jobs.state()})

    async def models(self, _request: Request) -> Response:
        """The one model."""
        model = {"id": self.name, "object": "model", "created": self._created, "owned_by": "attention-labs"}
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        fields = read(await _body(request), Completion)
        return await self._answer(request, fields, fields.max_tokens, self.text.encode(fields.prompt))

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        fields = read(await _body(request), Chat)
        if not self.text.template:
            raise ApiError("this model has no chat format: use /v1/completions", code="model_not_supported")
        tokens = self.text.encode(self.text.chat_text([message.for_template() for message in fields.messages]))
        return await self._answer(request, fields, fields.max_new, tokens)

    async def _answer(self, request: Request, fields: Fields, max_new: int | None, prompt: list[int]) -> Response:
        is_chat = isinstance(fields, Chat)
        if fields.model != self.name:
            raise ApiError(f"the model is {self.name!r}", param="model", code="model_not_found", status=404)
        n_prompt, most = len(prompt), self.jobs.most_tokens()
        if max_new is None:
            max_new = max(1, min(DEFAULT_NEW, most - n_prompt))
        if n_prompt + max_new > most:
            message = (
                f"the prompt has {n_prompt} tokens, and {max_new} new ones are asked for: together at most {most} fit"
            )
            raise ApiError(message, param="messages" if is_chat else "prompt", code="context_length_exceeded")
        ends = frozenset(self.text.ends)
        job = Job(next(self._numbers), prompt, max_new, ends, asyncio.get_running_loop())
        form = _Form(self.name, job.number, is_chat)
        self.jobs.submit(job)
        if fields.stream:
            events = self._events(job, fields.stops, form, fields.wants_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        watch = asyncio.create_task(_leave_with(request, job))
        try:
            parts = [part async for part in _parts(job, self.text, fields.stops)]
        finally:
            watch.cancel()
        if job.ended == "error":
            raise ApiError(job.error, code="server_error", status=500)
        return JSONResponse(form.whole("".join(parts), job))

    async def _events(self, job: Job, stops: list[str], form: _Form, wants_usage: bool) -> AsyncIterator[str]:
        unknown_yet = {"usage": None} if wants_usage else {}
        try:
            async for part in _parts(job, self.text, stops):
                yield _event(form.piece(part, None) | unknown_yet)
            if job.ended == "error":
                yield _event({"error": ApiError(job.error, code="server_error", status=500).body})
                return
            yield _event(form.piece("", job.ended) | unknown_yet)
            if wants_usage:
                yield _event(form.piece("", None) | {"choices": [], "usage": form.usage(job)})
            yield "data: [DONE]\n\n"
        finally:
            job.end("left")


class _Form:
    """The JSON of a completion or a chat completion."""

    def __init__(self, name: str, number: int, is_chat: bool) -> None:
        self._name, self._is_chat, self._is_first = name, is_chat, True
        self._id, self._created = f"{'chatcmpl' if is_chat else 'cmpl'}-{number}", int(time.time())

    def whole(self, text: str, job: Job) -> dict[str, Any]:
        """The whole answer."""
        said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": job.ended, "logprobs": None}
        return self._head("chat.completion") | {"choices": [choice], "usage": self.usage(job)}

    def piece(self, text: str, ended: str | None) -> dict[str, Any]:
        """A part of a streamed answer."""
        delta = {"role": "assistant", "content": text} if self._is_first else {"content": text} if text else {}
        self._is_first = False
        said = {"delta": delta} if self._is_chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": ended, "logprobs": None}
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def usage(self, job: Job) -> dict[str, Any]:
        """Tokens of prompt and answer, and how many of the prompt were found in the cache."""
        n_prompt, n_new = len(job.prompt), len(job.tokens)
        counts = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
        return counts | {"prompt_tokens_details": {"cached_tokens": job.cached or 0}}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self._is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}


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


async def _leave_with(request: Request, job: Job) -> None:
    """End a job when its client has left."""
    with contextlib.suppress(ClientDisconnect):
        while not await request.is_disconnected():
            await asyncio.sleep(0.2)
    job.end("left")


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise ApiError(f"a request has at most {MAX_BODY:,} bytes", status=413)
    return bytes(data)


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
