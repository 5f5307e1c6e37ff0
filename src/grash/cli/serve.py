"""grash serve, map, push and pull: a model as a web page and REST service, as a map, on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grash.cli.answers import PAGES, check_out_file
from grash.cli.console import say, show, show_log
from grash.cli.options import Device, ModelFolder, Overwrite, Threads
from grash.formatting import format_duration

if TYPE_CHECKING:
    from grash.serve.service import Service

Endpoint = Annotated[str | None, typer.Option(help="Address of another server than the Hub.")]


def add_to(app: typer.Typer) -> None:
    app.command("map", rich_help_panel="Models")(map_entities)
    for verb in (push, pull, serve):
        app.command(rich_help_panel="Models")(verb)


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
    from grash.errors import ConfigError
    from grash.optional import optional_import

    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ConfigError("--token is not possible: give printable ASCII characters, no space at the ends.")
    for module in ("fastapi", "httptools", "uvicorn"):
        optional_import(module, extra="serve", purpose="grash serve", load=False)
    from grash.serve.server import ModelServer

    def load() -> Service:
        from grash.engines.trainer import set_threads
        from grash.serve.service import Service

        set_threads(threads)
        service = Service.load(model, device)
        say(f"{service.model!r}, loaded after {format_duration(time.monotonic() - began)}")
        return service

    began = time.monotonic()
    show_log()
    if not _is_there(model):
        load()  # raises what is wrong, before an address is printed
    server = ModelServer(load, port, token=token)
    address = f"http://127.0.0.1:{server.port}/"
    say(f"{address}{'' if token is None else '#token=TOKEN'}  (press Ctrl-C to stop)")
    if open_page:
        import webbrowser

        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):  # the way to stop it
        server.run()
    say("Stopped.")


def map_entities(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("map.html"),
    method: Annotated[
        Literal["auto", "umap", "pca"],
        typer.Option(help="auto: UMAP if umap-learn is installed, for up to 100,000 entities; else PCA."),
    ] = "auto",
    max_points: Annotated[int, typer.Option(help="Most entities to show: those with the most triples.")] = 1_000_000,
    type_relation: Annotated[
        str | None,
        typer.Option(help="Relation from an entity to its type (default: found by its name)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of UMAP.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a map of the entities: one page with zoom, colors, names and search.

    Entities with similar embeddings are near each other. Open the page in a browser; it needs no network.
    """
    from grash.api.model import load_model

    show_log(verbose=True)
    if not _is_there(model):
        load_model(model, device="cpu")  # raises what is wrong, before a page that exists is complained about
    check_out_file(out, overwrite=overwrite, suffixes=PAGES)
    loaded = load_model(model, device="cpu")
    where = loaded.map(
        out, method=method, max_points=max_points, type_relation=type_relation, seed=seed, overwrite=overwrite
    )
    show(where)


def _is_there(model: Path) -> bool:
    return any((folder / "model.json").is_file() for folder in (model, model / "model"))


def push(
    model: ModelFolder,
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.", show_default=False)],
    public: Annotated[bool, typer.Option("--public", help="Create a public repository (default: private).")] = False,
    endpoint: Endpoint = None,
) -> None:
    """Upload a model folder to the Hugging Face Hub.

    The folder contains the names and triples of its graph. Log in with huggingface_hub's own command, hf auth login.
    """
    from grash.interop.hub import push_model

    show(push_model(model, repository, public=public, endpoint=endpoint))


def pull(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Model folder to write.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit (default: main).")] = None,
    endpoint: Endpoint = None,
    overwrite: Overwrite = False,
) -> None:
    """Download a model folder from the Hugging Face Hub, and check it."""
    from grash.interop.hub import pull_model

    show(pull_model(repository, out, revision=revision, overwrite=overwrite, endpoint=endpoint))
