"""Published stores and tables are read as they are, and give the numbers of the published pages again."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import polars as pl
import pytest

from grash.search.settings import make_settings
from grash_study.confirm import identity
from grash_study.methods import METHODS, SWEEP, Method
from grash_study.recorded import Recorded
from grash_study.store import Store, merge_stores
from grash_study.table import Table
from grash_study.transfer import analyze

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STORES = sorted((RESULTS / "stores").glob("*.xz"))
TABLES = sorted((RESULTS / "tables").glob("*.parquet"))
OLD_METHODS = {"core order": "chain", "guard rail": "rail", "carry-over": "carry", "rungs": "laboratory",
               "random holdout in the last round": "last round holds out any"}  # fmt: skip


def published_name(method: Method) -> str:
    name = method.name
    for new, old in OLD_METHODS.items():
        name = name.replace(new, old)
    return name


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.name)
def test_a_published_store_has_todays_names(path):
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    store = Store.read(path)
    assert len(store.searches) == sum(line["kind"] == "search" for line in lines)
    assert len(store.entries) == sum(line["kind"] == "cell" for line in lines)
    assert "count" not in store.meta and store.meta.get("degree", "neighbors") == "neighbors"
    for record in store.searches.values():
        assert make_settings(record["settings"]).trend == record["settings"]["trend"]  # every name is a setting


def test_published_stores_are_merged_into_new_ones(tmp_path):
    (tmp_path / "some").mkdir()
    for path in STORES[1:3]:
        (tmp_path / "some" / path.name).write_bytes(path.read_bytes())
    found = merge_stores(tmp_path / "here", tmp_path / "some")
    assert found == {path.stem: len(Store.read(path).searches) for path in STORES[1:3]}
    assert merge_stores(tmp_path / "here", tmp_path / "some") == dict.fromkeys(found, 0)


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in STORES if p.name.startswith("confirm-")], ids=lambda path: path.name)
def test_published_searches_are_not_taken_for_searches_with_the_present_defaults(path):
    """They have other batch sizes, another patience and relations predicted forward only (decisions 0046 and 0047)."""
    store = Store.read(path)
    for name, record in store.searches.items():
        settings = make_settings(record["settings"])
        assert name.split()[-1] != identity(settings, store.meta["n_entities"]), name


@pytest.mark.parametrize("kind", ["methods", "sweep"])
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_published_table_gives_the_published_picks(path, kind):
    """Of methods that are ours; TPE and Gaussian processes are now those of Optuna and scikit-learn."""
    bench = Recorded(Table.load(path))
    seeds = pl.read_parquet(RESULTS / f"{kind}-{path.name}")
    chosen = {"methods": METHODS, "sweep": SWEEP}[kind]
    chosen = [m for m in chosen if m.run in ("grash", "random", "hyperband", "rungs", "one-epoch")]
    chosen = [m for m in chosen if m.settings.get("how") != "waves"]
    assert len(chosen) > 5
    for method in chosen:
        published = seeds.filter(pl.col("method") == published_name(method)).head(4 if kind == "methods" else 2)
        assert len(published)
        for row in published.iter_rows(named=True):
            trace = method(bench, row["seed"], 3.0)
            assert (bench.members[trace.pick], trace.cost) == (row["pick"], pytest.approx(row["cost"])), method.name


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["codex-s-complex-d128-paper-e100-s0", "wn18rr-complex-d128-paper-e100-s0"])
def test_a_published_store_gives_the_published_correlations(graph):
    store = Store.read(RESULTS / "stores" / f"{graph}.jsonl.xz")
    page = (RESULTS / f"transfer-{graph}.md").read_text(encoding="utf-8").partition("## All")[2].partition("## ")[0]
    shown = {"core-order": "chain", "epochs": "epochs", "combined": "combined"}
    for found in analyze(store, 128, reductions=tuple(shown), budgets=(1 / 64, 1 / 4)):
        (row,) = re.findall(rf"^\| {shown[found.reduction]} \| 128 \| (.*) \|$", page, re.MULTILINE)
        cell = row.split(" | ")[{1 / 64: 0, 1 / 4: 4}[found.budget]]
        c = found.all
        assert cell == f"{c.rho:.2f} [{c.low:.2f}, {c.high:.2f}]", found.reduction
