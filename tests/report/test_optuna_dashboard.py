"""optuna-dashboard shows the search that the ledger has."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
import warnings
from pathlib import Path

import pytest

from grash.errors import InputError
from grash.report.optuna import dashboard_server
from report.runs import write_run

pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is an extra")


def asked(address: str) -> dict[str, object]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return dict(json.load(answer))


@pytest.mark.filterwarnings("ignore")
def test_the_dashboard_has_the_studies_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    state = write_run(folder, n_trials=16).state
    with warnings.catch_warnings(), dashboard_server(folder, 0) as server:
        warnings.simplefilter("ignore")
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            found = asked(f"http://127.0.0.1:{port}/api/studies")
            studies = {s["study_name"]: s["study_id"] for s in found["study_summaries"]}  # type: ignore[attr-defined]
            assert set(studies) == {"run/overview", "run/round-1", "run/round-2"}
            overview = asked(f"http://127.0.0.1:{port}/api/studies/{studies['run/overview']}?after=0")
            assert len(overview["trials"]) == 16  # type: ignore[arg-type]
            assert f"configuration {state.winner}" in str(overview["note"])
        finally:
            server.shutdown()
            thread.join()


def test_a_taken_port_and_a_missing_package_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    write_run(folder, n_trials=4)
    with (
        dashboard_server(folder, 0) as server,
        pytest.raises(InputError, match="choose another one with --port"),
        dashboard_server(folder, server.server_port),
    ):
        pass
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(InputError, match=r"pip install 'grash-kge\[dashboard\]'"), dashboard_server(folder, 0):
        pass
