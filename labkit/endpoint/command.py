"""`lab serve`: an OpenAI-compatible endpoint on this machine, with Lab 13's server behind it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

HOST = "127.0.0.1"


def serve(
    plain: Annotated[
        bool, typer.Option("--plain", help="one request after the other with torch's attention, without your code")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE.gguf", help="another model of the llama architecture")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free")] = 8013,
    cache: Annotated[int, typer.Option(min=1, metavar="MIB", help="MiB for keys and values")] = 200,
) -> None:
    """Serve a real language model with your Lab 13: an OpenAI-compatible API and a page, on this machine only."""
    import asyncio

    from labkit.chat import together
    from labkit.chat.mistakes import explained, mistake_lines
    from labkit.endpoint.jobs import Jobs, TogetherJobs
    from labkit.labs.catalog import find_lab
    from labkit.model.weights import ModelError, read_model
    from labkit.notebook import student_module

    lab = find_lab("13")
    if not plain:
        together.rehearse(lab)
    try:
        import uvicorn

        from labkit.endpoint.api import make_app

        loaded = read_model(model)
    except ModelError as error:
        sys.exit(f"lab serve: {error}")
    except ImportError as error:
        sys.exit(f"lab serve: {error.name} is not installed: uv sync --group model")

    def report(error: Exception) -> str:
        lines = mistake_lines(lab, error)
        for line in lines:
            typer.echo(line, err=True)
        return " ".join(lines[0].split())

    if plain:
        jobs = Jobs(loaded.llama)
    else:
        with explained(lab):
            jobs = TogetherJobs(loaded.llama, student_module(lab.number).Server, cache << 20, report)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            """Tell the clients first: uvicorn waits for their connections."""
            await asyncio.to_thread(jobs.stop)
            await super().shutdown(sockets)

    app = make_app(jobs, loaded.text, loaded.name)
    config = uvicorn.Config(app, HOST, port, log_level="warning", timeout_graceful_shutdown=2)
    server = Server(config)
    try:
        socket = config.bind_socket()
    except SystemExit:
        sys.exit(f"lab serve: port {port} of {HOST} is in use: --port 0 takes a free one")
    address = f"http://{HOST}:{socket.getsockname()[1]}"
    typer.echo(f"{loaded.name} answers at {address}/v1, requests and blocks are shown at {address}. Ctrl-C ends it.")
    server.run(sockets=[socket])
