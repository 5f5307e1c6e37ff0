"""grash serve: a model as a web page and REST service on this machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from grash.cli.console import say, show_log
from grash.cli.options import Device, ModelFolder, Threads
from grash.formatting import format_duration


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Models")(serve)


def serve(
    model: ModelFolder,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 chooses a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(envvar="GRASH_TOKEN", help="Secret that requests must send (default: none needed).")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve a model as a web page and a REST service.

    It listens on 127.0.0.1 only, and changes nothing. /docs describes the REST service. Ctrl-C stops it.
    """
    from grash.engines.trainer import set_threads
    from grash.errors import ConfigError
    from grash.optional import optional_import

    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ConfigError("--token is not possible: give one or more printable ASCII characters.")
    for module in ("fastapi", "uvicorn"):
        optional_import(module, extra="serve", purpose="grash serve")
    from grash.serve.server import ModelServer
    from grash.serve.service import Service

    show_log()
    set_threads(threads)
    began = time.monotonic()
    service = Service.load(model, device)
    server = ModelServer(service, port, token=token)
    address = f"http://127.0.0.1:{server.port}/"
    say(f"{service.model!r}, loaded in {format_duration(time.monotonic() - began)}")
    say(f"{address}{'' if token is None else '#token=TOKEN'}  (press Ctrl-C to stop)")
    if open_page:
        import webbrowser

        webbrowser.open(address)
    server.run()
