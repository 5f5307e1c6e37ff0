"""A missing optional library ends in a sentence that names the extra to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import grash
from grash.errors import InputError
from grash.optional import optional_import


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    expected = r"^Reading g.parquet needs polars, which is not installed: pip install 'grash-kge\[parquet\]'\.$"
    with pytest.raises(InputError, match=expected):
        optional_import("polars", extra="parquet", purpose="Reading g.parquet")


def test_a_library_that_lacks_another_one_is_no_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        optional_import("half_installed", extra="all", purpose="This")


def test_parquet_without_polars_is_an_error_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graph.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match=r"pip install 'grash-kge\[parquet\]'"):
        grash.load_dataset(tmp_path / "graph.parquet")
