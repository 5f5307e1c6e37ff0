"""The notebooks run from top to bottom, with shorter settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SHORT = {r"epochs=\d+": "epochs=1", r"dim=\d+": "dim=8", r"n_trials=\d+": 'n_trials=4, engine="sequential"'}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `test` has nbformat")
    nbclient = pytest.importorskip("nbclient", reason="the extra `test` has nbclient")
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        for pattern, short in SHORT.items():
            cell.source = re.sub(pattern, short, cell.source)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"] and len(outputs) > 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_output_and_without_paths_of_a_machine(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) - 1
    shown = [output for cell in code for output in cell["outputs"]]
    assert not any(output.get("name") == "stderr" for output in shown)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|usr)/", json.dumps(shown))
