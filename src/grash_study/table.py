"""A table: every configuration of a pool at every fidelity, as one Parquet file (docs/reference/tables.md).

Made from a store whose cells were trained on subgraphs along the core order and on the whole graph. `Recorded`
simulates searches on it in milliseconds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.engines.plan import plan_search
from grash.errors import FormatError, InputError
from grash.files import atomic_file
from grash.reduction.subgraph import holdout_size
from grash.search.graphs import SearchGraphs
from grash.search.schedule import Shape, isolated_shape
from grash.search.settings import SearchSettings
from grash_study.pool import Pool, StudyGraphs
from grash_study.store import MARKS, REGULAR, TESTED, Cell, Entry, Store, cells_on, rounded

SCHEMA, VERSION = "grash-table", 1
GRAPHS = MARKS[2:-1]  # of the train triples: 1/64 … 0.71, in half-steps of 2
_CLOSE = 1e-6  # of a step between graphs: a store rounds fractions
_NEAR_MARK = 1e-4  # relative: the epochs of a round come from whole positives and miss a usual mark by a part of one
_SIZES = ("entities", "relations", "triples", "n_valid")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """G graph fractions and F epoch fractions, ascending, the last of each 1; n configurations."""

    meta: dict[str, Any]
    configurations: list[dict[str, Any]]
    graph_fractions: tuple[float, ...]
    epoch_fractions: tuple[float, ...]
    valid: Floats  # (G, F, n) validation MRR: 0 once diverged, NaN if it was not validated there
    failed: Floats  # (G, n) epoch fraction at which it diverged, or inf
    test: dict[str, Floats]  # by metric, (n,) of the full training; NaN if not run
    seconds: Floats  # (G, n)
    entities: NDArray[np.int64]  # (G,) sizes of the graphs
    relations: NDArray[np.int64]
    triples: NDArray[np.int64]
    n_valid: NDArray[np.int64]
    isolated: Table | None = None  # the same pool on graphs as last rounds have them, if these hold out isolated pairs

    @property
    def n(self) -> int:
        return len(self.configurations)

    def neighbors(self, graph: float) -> tuple[int, int, float]:
        """Return (nearer, other, share of the other ≤ 1/2) of the table's graphs on both sides of a fraction, in log g.

        Fractions outside the subgraphs get the smallest or largest one. The whole graph is validated on other triples,
        so it only stands for itself.
        """
        below = [i for i, g in enumerate(self.graph_fractions) if g < 1]
        if graph >= 1 or not below:
            return len(self.graph_fractions) - 1, len(self.graph_fractions) - 1, 0.0
        position = float(np.interp(math.log(graph), np.log([self.graph_fractions[i] for i in below]), below))
        low, high = below[math.floor(position + _CLOSE)], below[math.ceil(position - _CLOSE)]
        share = position - low if high > low else 0.0
        return (low, high, share) if share <= 0.5 else (high, low, 1 - share)

    def shape(self, graph: float) -> Shape:
        """Return the sizes of the subgraph with this fraction; between the table's graphs interpolated in log g."""
        columns = [getattr(self, name) for name in _SIZES]
        if graph >= 1:
            entities, relations, triples, valid = (int(column[-1]) for column in columns)
            return Shape(entities, relations, triples, valid, whole=True)
        logs = np.log(np.asarray(self.graph_fractions))
        sizes = [float(np.exp(np.interp(math.log(graph), logs, np.log(column)))) for column in columns]
        if graph < self.graph_fractions[0]:  # below the smallest: in proportion
            sizes[2] *= graph / self.graph_fractions[0]
        entities, relations, triples, valid = (max(1, round(size)) for size in sizes)
        return Shape(entities, relations, triples, valid)

    def save(self, path: Path) -> None:
        """Write one Parquet file: a row per validation, and the rest as JSON in the file's metadata."""
        import polars as pl

        parts = [self._columns(isolated=False)]
        if self.isolated is not None:
            parts.append(self.isolated._columns(isolated=True))
        frame = pl.concat([pl.DataFrame(part) for part in parts])
        seen = set(frame["number"])
        not_run = {str(i): values for i, values in enumerate(self.configurations) if i not in seen}
        about = {"schema": SCHEMA, "version": VERSION, "meta": self.meta, "not_run": not_run}
        with atomic_file(Path(path)) as aside:
            frame.write_parquet(aside, compression="zstd", metadata={"grash": json.dumps(about, ensure_ascii=False)})

    @classmethod
    def load(cls, path: Path) -> Table:
        """Return the table in a file."""
        import polars as pl

        if not Path(path).is_file():
            raise InputError(f"There is no table {path}: make one with `grash study table`.")
        try:
            about = json.loads(pl.read_parquet_metadata(path)["grash"])
            columns = {name: np.asarray(column) for name, column in pl.read_parquet(path).to_dict().items()}
            if about["schema"] != SCHEMA or about["version"] != VERSION:
                raise ValueError(f"it is a {about['schema']} of version {about['version']}")
            not_run = {int(i): v for i, v in about.get("not_run", {}).items()}
            return _from_rows(about["meta"], not_run, columns)
        except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError, OSError) as error:
            raise FormatError(
                f"{path} is not a table of a study ({error}): make it again with `grash study table`."
            ) from error

    def _columns(self, *, isolated: bool) -> dict[str, Any]:
        """Return the columns of the file, a row per validation.

        isolated: without the whole graph, whose rows are those of the main table.
        """
        graphs, epochs = np.asarray(self.graph_fractions), np.asarray(self.epoch_fractions)
        measured = ~np.isnan(self.valid[: -1 if isolated else None])
        g, number, f = np.nonzero(measured.transpose(0, 2, 1))
        values = np.array([json.dumps(values, sort_keys=True) for values in self.configurations])
        tests = {f"test_{name}": np.where(graphs[g] == 1, self.test[name][number], math.nan) for name in TESTED}
        return {
            "number": number, "graph_fraction": graphs[g], "epoch_fraction": epochs[f],
            "isolated": np.full(len(g), isolated), "valid_mrr": self.valid[g, f, number],
            "failed_at": self.failed[g, number], "seconds": self.seconds[g, number],
            **{name: getattr(self, name)[g] for name in _SIZES}, **tests, "configuration": values[number],
        }  # fmt: skip


def table_cells(graphs: StudyGraphs) -> list[Cell]:
    """Return all cells of a table: the whole graph, subgraphs in half-steps, and those that the default search visits.

    The larger subgraphs come again as last rounds have them, if these hold out isolated pairs.
    """
    numbers, n_train = range(graphs.pool.n), len(graphs.pool.dataset.train)
    usual = [g for g in GRAPHS if g * n_train < n_train - holdout_size(n_train)]  # a search takes more as the whole
    wanted: dict[float, list[float]] = {}
    for fraction, epochs in planned_fidelities(graphs):
        wanted.setdefault(fraction, []).extend((epochs / 2, epochs))
    epoch = 1 / graphs.pool.settings.max_epochs  # some methods start with one
    cells = cells_on("whole", 1.0, numbers, also=[*wanted.pop(1.0, ()), epoch, epoch / 2])
    for fraction in sorted({*usual, *(rounded(f) for f in wanted)}):
        also = [m for f, marks in wanted.items() if rounded(f) == fraction for m in marks]
        cells += cells_on("core-order", fraction, numbers, also=also)
        if isolated_shape((fraction,), graphs.search) is not None:
            cells += cells_on("isolated", fraction, numbers, also=also)
    return cells


def planned_fidelities(graphs: StudyGraphs) -> list[tuple[float, float]]:
    """Return (graph fraction, epoch fraction) of the rounds of the default search over this pool.

    Epochs that miss a usual mark by a tiny part are that mark.
    """
    theirs = graphs.pool.settings
    n_trials = min(graphs.pool.n, int(SearchSettings.model_fields["n_trials"].default))
    settings = theirs.model_copy(update={"n_trials": n_trials, "final_train": False, "finalists": 0})
    search = SearchGraphs(graphs.pool.dataset, settings)
    search.share_cores(graphs.search)
    found = []
    for plan in (planned.plan for planned in plan_search(search, device="cpu", probe=False).rounds):
        g, e = 1.0 if plan.whole else plan.graph_fraction, plan.epochs / theirs.max_epochs
        usual = (*MARKS, *REGULAR) if g == 1 else MARKS
        found.append((g, next((mark for mark in usual if math.isclose(mark, e, rel_tol=_NEAR_MARK)), e)))
    return found


def make_table(store: Store, pool: Pool, *, guard_rails: dict[str, float]) -> Table:
    """Return the table of what a store has of a pool. Graphs on which nothing was trained in full are left out."""
    mine = [e for e in store.entries.values() if e.worked and 0 <= e.number < pool.n]
    if not any(e.technique == "whole" and e.marks[-1] == 1 for e in mine):
        raise InputError(f"{store.path} has no training on the whole graph yet, which a table needs: run them first.")
    meta = {**store.meta, "guard_rails": guard_rails}
    usual, isolated = (
        _of_entries([e for e in mine if e.technique in (technique, "whole")], meta, pool)
        for technique in ("core-order", "isolated")
    )
    return replace(usual, isolated=isolated if len(isolated.graph_fractions) > 1 else None)


def _of_entries(mine: list[Entry], meta: dict[str, Any], pool: Pool) -> Table:
    """Return the table of entries on different graphs, including the whole one."""
    graphs = sorted({e.fraction for e in mine if e.marks[-1] == 1})
    mine = [e for e in mine if e.fraction in graphs]
    marks = sorted({m for e in mine for m in e.marks})
    meta = {**meta, "device": ", ".join(sorted({e.device for e in mine}))}
    table = _empty(meta, [c.values for c in pool.configurations], graphs, marks)
    for entry in mine:
        g, n = graphs.index(entry.fraction), entry.number
        for mark in entry.marks:
            value = entry.valid(mark)
            table.valid[g, marks.index(mark), n] = math.nan if value is None else value
        table.failed[g, n] = math.inf if entry.failed is None else entry.failed
        table.seconds[g, n] = entry.seconds
        sizes = (entry.n_entities, entry.n_relations, entry.n_train, entry.n_valid)
        for name, size in zip(_SIZES, sizes):
            getattr(table, name)[g] = size
        if entry.technique == "whole" and entry.marks[-1] == 1:
            for name in TESTED:
                table.test[name][n] = entry.test[name] if entry.test else 0.0
    return table


def _empty(
    meta: dict[str, Any], configurations: list[dict[str, Any]], graphs: list[float], marks: list[float]
) -> Table:
    G, F, n = len(graphs), len(marks), len(configurations)  # noqa: N806 (letters of the docstring)
    return Table(
        meta, configurations, tuple(graphs), tuple(marks), np.full((G, F, n), np.nan), np.full((G, n), np.inf),
        {name: np.full(n, np.nan) for name in TESTED}, np.full((G, n), np.nan),
        np.zeros(G, np.int64), np.zeros(G, np.int64), np.zeros(G, np.int64), np.zeros(G, np.int64),
    )  # fmt: skip


def _from_rows(meta: dict[str, Any], not_run: dict[int, dict[str, Any]], columns: dict[str, NDArray[Any]]) -> Table:
    isolated = columns["isolated"]
    numbers, first = np.unique(columns["number"], return_index=True)
    found = {**not_run, **{int(n): json.loads(columns["configuration"][i]) for n, i in zip(numbers, first)}}
    values = [found[i] for i in range(len(found))]
    usual, last = (
        _of_rows(meta, values, {name: column[rows] for name, column in columns.items()})
        for rows in (~isolated, isolated | (columns["graph_fraction"] == 1))
    )
    return replace(usual, isolated=last) if isolated.any() else usual


def _of_rows(meta: dict[str, Any], values: list[dict[str, Any]], columns: dict[str, NDArray[Any]]) -> Table:
    graphs, g = np.unique(columns["graph_fraction"], return_inverse=True)
    marks, f = np.unique(columns["epoch_fraction"], return_inverse=True)
    table, number = _empty(meta, values, graphs.tolist(), marks.tolist()), columns["number"]
    table.valid[g, f, number] = columns["valid_mrr"]
    table.failed[g, number], table.seconds[g, number] = columns["failed_at"], columns["seconds"]
    for name in _SIZES:
        getattr(table, name)[g] = columns[name]
    whole = g == len(graphs) - 1
    for name in TESTED:
        table.test[name][number[whole]] = columns[f"test_{name}"][whole]
    return table
