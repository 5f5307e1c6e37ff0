"""optuna-dashboard on the view of a run folder, on this machine only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from grash.errors import InputError
from grash.report.optuna_view import VIEW_FILE, OptunaView
from grash.report.summary import state_of
from grash.search.state import SearchState

HOST = "127.0.0.1"


@contextmanager
def dashboard_server(run_folder: Path, port: int) -> Iterator[WSGIServer]:
    """A server that is bound and not yet serving; the view is brought up to date first."""
    folder = Path(run_folder)
    state = state_of(folder)
    if find_spec("optuna_dashboard") is None or find_spec("optuna") is None:
        raise InputError("The dashboard needs optuna-dashboard: pip install 'grash[dashboard]'.")
    OptunaView(folder).update(state)
    if not (folder / VIEW_FILE).is_file():
        raise InputError(f"{folder} has no trials to show yet: try again when the search has proposed configurations.")
    try:
        server = make_server(HOST, port, _application(folder, state), handler_class=_Quiet)
    except (OSError, OverflowError) as error:
        raise InputError(f"Port {port} cannot be used ({error}): give another with --port.") from error
    with server:
        yield server


def note(state: SearchState) -> str:
    """What a visitor of the overview study should know, in Markdown."""
    said = (
        "One trial per configuration. Its value is the number of rounds it survived plus its place in the last one, so "
        "that configurations judged on different graphs compare; the studies of the rounds have the MRRs themselves. "
        "Configurations that are still in the race are shown as running.\n"
    )
    best = state.incumbent()
    if best is None or best.mrr is None:
        return said
    return f"{said}\n**Best so far**: configuration {best.number}, MRR {best.mrr:.4f} in round {best.round}.\n"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        """A line for every request would bury the address."""


def _application(folder: Path, state: SearchState) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna_dashboard = import_module("optuna_dashboard")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / VIEW_FILE)))
    overview = optuna.load_study(study_name=f"{folder.resolve().name}/overview", storage=storage)
    optuna_dashboard.save_note(overview, note(state))
    return optuna_dashboard.wsgi(storage)
