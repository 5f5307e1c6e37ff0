"""A table: every configuration of a pool at every fidelity, as one Parquet file (docs/reference/tables.md).

Made from a store whose cells were trained on subgraphs along the core order and on the whole graph. `Recorded`
simulates searches on it in milliseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
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
from grash.search.settings import SearchSettings, make_settings
from grash_study.pool import Pool, StudyGraphs
from grash_study.store import MARKS, REGULAR, TESTED, Cell, Entry, Store, cells_on, rounded

SCHEMA, VERSION = "grash-table", 1
GRAPHS = MARKS[2:-1]  # of the train triples: 1/64 … 0.71, in half-steps of 2
_CLOSE = 1e-6  # of a step between graphs: a store rounds fractions
_NEAR_MARK = 1e-4  # relative: the epochs of a round come from whole positives and miss a usual mark by a part of one
_SIZES = ("entities", "relations", "triples", "n_valid")
_COLUMNS = (
    "number", "graph_fraction", "epoch_fraction", "isolated", "valid_mrr", "failed_at", "seconds", *_SIZES,
    *(f"test_{name}" for name in TESTED), "configuration",
)  # fmt: skip
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """G graph fractions and F epoch fractions, ascending, the last of each 1; n configurations."""

    meta: dict[str, Any]
    configurations: list[dict[str, Any]]
    graph_fractions: tuple[float, ...]
    epoch_fractions: tuple[float, ...]
    valid: Floats  # (G, F, n) validation MRR: 0 once diverged, NaN if not run so far, interpolated if not measured
    measured: NDArray[np.bool_]  # (G, F)
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

    @property
    def missing(self) -> tuple[float, ...]:
        """Planned graph fractions on which nothing was trained in full; none if no plan is known."""
        return _absent(self.meta.get("planned_graphs", ()), self.graph_fractions)

    @property
    def missing_isolated(self) -> tuple[float, ...]:
        """The same for the graphs of last rounds."""
        there = () if self.isolated is None else self.isolated.graph_fractions
        return _absent(self.meta.get("planned_isolated", ()), there)

    def without(self, graphs: Collection[int]) -> Table:
        """Return the table without some of its graphs, given by index."""
        left = [g for g in range(len(self.graph_fractions)) if g not in graphs]
        arrays = {name: getattr(self, name)[left] for name in ("valid", "measured", "failed", "seconds", *_SIZES)}
        return replace(self, graph_fractions=tuple(self.graph_fractions[g] for g in left), **arrays)

    def score(self, number: int, graph: float, epochs: float) -> float:
        """Return the validation MRR of a configuration at (g, e).

        In g, linear in log g between two neighbors: 0 if it has diverged on the nearer one; only the nearer counts if
        it has diverged on the other. In e, linear between measured ones, 0 at e = 0; after a divergence 0, and up to
        it the last validation.
        """
        near, other, share = self.neighbors(graph)
        if epochs >= self.failed[near, number]:
            return 0.0
        there = self._on_graph(near, number, epochs)
        if epochs >= self.failed[other, number]:
            return there
        return (1 - share) * there + share * self._on_graph(other, number, epochs)

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

        rows = self._rows(isolated=False) + ([] if self.isolated is None else self.isolated._rows(isolated=True))
        seen = {row[0] for row in rows}
        not_run = {str(i): values for i, values in enumerate(self.configurations) if i not in seen}
        about = {"schema": SCHEMA, "version": VERSION, "meta": self.meta, "not_run": not_run}
        frame = pl.DataFrame(rows, schema=list(_COLUMNS), orient="row", infer_schema_length=None)
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

    def _on_graph(self, g: int, number: int, epochs: float) -> float:
        there = np.asarray(self.epoch_fractions) < self.failed[g, number]
        marks = np.concatenate([[0.0], np.asarray(self.epoch_fractions)[there]])
        return float(np.interp(epochs, marks, np.concatenate([[0.0], self.valid[g, there, number]])))

    def _rows(self, *, isolated: bool) -> list[tuple[Any, ...]]:
        """isolated: without the whole graph, which has its own rows."""
        rows = []
        values = [json.dumps(c, sort_keys=True) for c in self.configurations]
        for g, graph in enumerate(self.graph_fractions[: -1 if isolated else None]):
            sizes, whole = [int(getattr(self, name)[g]) for name in _SIZES], g == len(self.graph_fractions) - 1
            for i in range(self.n):
                after = (float(self.failed[g, i]), float(self.seconds[g, i]), *sizes)
                tests = [float(self.test[name][i]) if whole else math.nan for name in TESTED]
                for f, epochs in enumerate(self.epoch_fractions):
                    mrr = float(self.valid[g, f, i])
                    if self.measured[g, f] and not math.isnan(mrr):
                        rows.append((i, graph, epochs, isolated, mrr, *after, *tests, values[i]))
        return rows


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
    settings = make_settings(
        {
            "models": theirs.models, "dim": theirs.dim, "max_epochs": theirs.max_epochs, "seed": theirs.seed,
            "space": theirs.space, "fixed": theirs.fixed, "n_trials": n_trials, "proposals": "random",
            "final_train": False, "finalists": 0,
        }
    )  # fmt: skip
    search = SearchGraphs(graphs.pool.dataset, settings)
    search.share_cores(graphs.search)
    found = []
    for plan in (planned.plan for planned in plan_search(search, device="cpu", probe=False).rounds):
        g, e = 1.0 if plan.whole else plan.graph_fraction, plan.epochs / theirs.max_epochs
        usual = (*MARKS, *REGULAR) if g == 1 else MARKS
        found.append((g, next((mark for mark in usual if math.isclose(mark, e, rel_tol=_NEAR_MARK)), e)))
    return found


def make_table(store: Store, pool: Pool, *, guard_rails: dict[str, float], cells: Sequence[Cell] = ()) -> Table:
    """Return the table of what a store has of a pool. Graphs on which nothing was trained in full are left out.

    cells: those of `table_cells`; the table then knows which graphs were planned.
    """
    mine = [e for e in store.entries.values() if e.worked and 0 <= e.number < pool.n]
    if not any(e.technique == "whole" and e.marks[-1] == 1 for e in mine):
        raise InputError(f"{store.path} has no training on the whole graph yet, which a table needs: run them first.")
    known: dict[str, Any] = {"guard_rails": guard_rails}
    if cells:
        for name, techniques in (("planned_graphs", ("core-order", "whole")), ("planned_isolated", ("isolated",))):
            known[name] = sorted({c.fraction for c in cells if c.technique in techniques})
    usual, isolated = (
        _of_entries([e for e in mine if e.technique in (technique, "whole")], {**store.meta, **known}, pool)
        for technique in ("core-order", "isolated")
    )
    return replace(usual, isolated=isolated if len(isolated.graph_fractions) > 1 else None)


def _absent(planned: Iterable[float], there: Iterable[float]) -> tuple[float, ...]:
    return tuple(g for g in planned if not any(math.isclose(g, f, rel_tol=_CLOSE) for f in there))


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
            value, f = entry.valid(mark), marks.index(mark)
            table.valid[g, f, n] = math.nan if value is None else value
            table.measured[g, f] = True
        table.failed[g, n] = math.inf if entry.failed is None else entry.failed
        table.seconds[g, n] = entry.seconds
        sizes = (entry.n_entities, entry.n_relations, entry.n_train, entry.n_valid)
        for name, size in zip(_SIZES, sizes):
            getattr(table, name)[g] = size
        if entry.technique == "whole" and entry.marks[-1] == 1:
            for name in TESTED:
                table.test[name][n] = entry.test[name] if entry.test else 0.0
    return _filled(table)


def _empty(
    meta: dict[str, Any], configurations: list[dict[str, Any]], graphs: list[float], marks: list[float]
) -> Table:
    G, F, n = len(graphs), len(marks), len(configurations)  # noqa: N806 (letters of the docstring)
    return Table(
        meta, configurations, tuple(graphs), tuple(marks), np.full((G, F, n), np.nan), np.zeros((G, F), bool),
        np.full((G, n), np.inf), {name: np.full(n, np.nan) for name in TESTED}, np.full((G, n), np.nan),
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
    table.valid[g, f, number], table.measured[g, f] = columns["valid_mrr"], True
    table.failed[g, number], table.seconds[g, number] = columns["failed_at"], columns["seconds"]
    for name in _SIZES:
        getattr(table, name)[g] = columns[name]
    whole = g == len(graphs) - 1
    for name in TESTED:
        table.test[name][number[whole]] = columns[f"test_{name}"][whole]
    return _filled(table)


def _filled(table: Table) -> Table:
    """Interpolate, in place, at the epoch fractions at which a graph was not validated."""
    marks = np.asarray(table.epoch_fractions)
    for g, n in np.ndindex(table.failed.shape):
        values, failed = table.valid[g, :, n], table.failed[g, n]
        known = ~np.isnan(values) & (marks < failed)
        if not known.any() and not np.isfinite(failed):
            continue
        last = np.inf if np.isfinite(failed) else marks[known][-1]  # up to where it was run
        empty = np.isnan(values) & (marks <= last)
        between = np.interp(marks, np.concatenate([[0.0], marks[known]]), np.concatenate([[0.0], values[known]]))
        values[empty] = np.where(marks >= failed, 0.0, between)[empty]
    return table
