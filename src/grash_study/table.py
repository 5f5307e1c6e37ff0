"""A table to compete on: every configuration of a pool at every fidelity, as one file (docs/reference/tables.md).

Made from a store whose cells were trained on chain graphs and on the whole one; recorded.py and methods/ search on it
in milliseconds.
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

from grash.errors import FormatError, InputError
from grash.files import atomic_file
from grash.reduction.subgraph import holdout_size
from grash.search.schedule import Shape, isolated_shape
from grash_study.cells import MARKS, TESTED, Cell, Entry, cells_on, rounded
from grash_study.graphs import StudyGraphs
from grash_study.pool import Pool
from grash_study.run import planned_fidelities
from grash_study.store import Store

SCHEMA, VERSION = "grash-table", 2
_READ = (1, 2)  # the first had no column `apart`
GRAPHS = MARKS[2:-1]  # of the train triples: 1/64 … 0.71, in half-steps of 2
_CLOSE = 1e-6  # of a step between graphs: a store rounds fractions
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """G graph fractions and F epoch fractions, ascending, the last of each 1; n configurations.

    valid (G, F, n): validation MRR, 0 once a training has diverged, NaN where it was not run so far; where a graph was
    not validated at some epoch, between its neighbors (`measured` (G, F) says which were). failed (G, n): the epoch
    fraction at which it diverged, or inf. test: by metric, (n,) at full fidelity, NaN where not run. seconds (G, n).
    entities, relations, triples, n_valid (G,): sizes of the graphs. isolated: the same pool on the larger graphs as the
    last round of a search has them, where it holds out triples like the dataset's valid ones; None where it does not.
    """

    meta: dict[str, Any]
    configurations: list[dict[str, Any]]
    graph_fractions: tuple[float, ...]
    epoch_fractions: tuple[float, ...]
    valid: Floats
    measured: NDArray[np.bool_]
    failed: Floats
    test: dict[str, Floats]
    seconds: Floats
    entities: NDArray[np.int64]
    relations: NDArray[np.int64]
    triples: NDArray[np.int64]
    n_valid: NDArray[np.int64]
    isolated: Table | None = None

    @property
    def n(self) -> int:
        return len(self.configurations)

    @property
    def missing(self) -> tuple[float, ...]:
        """Graph fractions that were planned and on which nobody was trained in full; none where no plan is known."""
        return _absent(self.meta.get("planned_graphs", ()), self.graph_fractions)

    @property
    def missing_apart(self) -> tuple[float, ...]:
        """The same of the graphs that last rounds have."""
        return _absent(
            self.meta.get("planned_apart", ()), () if self.isolated is None else self.isolated.graph_fractions
        )

    def without(self, graphs: Collection[int]) -> Table:
        """The table without some of its graphs, by their places."""
        left = [g for g in range(len(self.graph_fractions)) if g not in graphs]
        arrays = ("valid", "measured", "failed", "seconds", "entities", "relations", "triples", "n_valid")
        shorter = {name: getattr(self, name)[left] for name in arrays}
        return replace(self, graph_fractions=tuple(self.graph_fractions[g] for g in left), **shorter)

    def score(self, number: int, graph: float, epochs: float) -> float:
        """The validation MRR of a configuration at (g, e).

        g: between its two neighbors, linear in log g (`neighbors`); where it has diverged on the nearer one, 0, and
        where only on the other, as on the nearer. e: exact where it was measured, else linear between neighbors (0 at
        e = 0); 0 once it has diverged; before that, the last validation stands up to the failure.
        """
        near, far, share = self.neighbors(graph)
        if epochs >= self.failed[near, number]:
            return 0.0
        there = self._on_graph(near, number, epochs)
        if epochs >= self.failed[far, number]:
            return there
        return (1 - share) * there + share * self._on_graph(far, number, epochs)

    def neighbors(self, graph: float) -> tuple[int, int, float]:
        """(nearer, farther, share of the farther ≤ 1/2) of the table's graphs on both sides of a fraction, in log g.

        Below the smallest graph that one answers, and above the largest subgraph that one: the whole graph is validated
        on triples of its own, so that it answers for itself alone.
        """
        below = [i for i, g in enumerate(self.graph_fractions) if g < 1]
        if graph >= 1 or not below:
            return len(self.graph_fractions) - 1, len(self.graph_fractions) - 1, 0.0
        place = float(np.interp(math.log(graph), np.log([self.graph_fractions[i] for i in below]), below))
        low, high = below[math.floor(place + _CLOSE)], below[math.ceil(place - _CLOSE)]
        share = place - low if high > low else 0.0
        return (low, high, share) if share <= 0.5 else (high, low, 1 - share)

    def _on_graph(self, g: int, number: int, epochs: float) -> float:
        there = np.asarray(self.epoch_fractions) < self.failed[g, number]
        marks = np.concatenate([[0.0], np.asarray(self.epoch_fractions)[there]])
        return float(np.interp(epochs, marks, np.concatenate([[0.0], self.valid[g, there, number]])))

    def shape(self, graph: float) -> Shape:
        """Sizes of the subgraph with this fraction: exact where the table has it, else interpolated in log g."""
        if graph >= 1:
            entities, relations, triples, valid = (int(column[-1]) for column in self._sizes())
            return Shape(entities, relations, triples, valid, whole=True)
        logs = np.log(np.asarray(self.graph_fractions))
        at = math.log(graph)
        sizes = [float(np.exp(np.interp(at, logs, np.log(c)))) for c in self._sizes()]
        if graph < self.graph_fractions[0]:  # below the smallest: in proportion
            sizes[2] *= graph / self.graph_fractions[0]
        entities, relations, triples, valid = (max(1, round(size)) for size in sizes)
        return Shape(entities, relations, triples, valid)

    def _sizes(self) -> tuple[NDArray[np.int64], ...]:
        return self.entities, self.relations, self.triples, self.n_valid

    def save(self, path: Path) -> None:
        """One Parquet file: a row per validation, and what belongs to all of it as JSON in the file's metadata."""
        import polars as pl

        rows = self._rows(isolated=False)
        for name, more in ({} if self.isolated is None else self.isolated._rows(isolated=True)).items():
            rows[name] += more
        seen = set(rows["number"])
        unseen = {str(i): values for i, values in enumerate(self.configurations) if i not in seen}
        about = {"schema": SCHEMA, "version": VERSION, "meta": self.meta, "not_run": unseen}
        with atomic_file(Path(path)) as aside:
            pl.DataFrame(rows).write_parquet(
                aside, compression="zstd", metadata={"grash": json.dumps(about, ensure_ascii=False)}
            )

    @classmethod
    def load(cls, path: Path) -> Table:
        """The table of a file that `save` wrote."""
        import polars as pl

        if not Path(path).is_file():
            raise InputError(f"There is no table {path}: make one with `grash study table`.")
        try:
            about = json.loads(pl.read_parquet_metadata(path)["grash"])
            columns = pl.read_parquet(path).to_dict(as_series=False)
            if about["schema"] != SCHEMA or about["version"] not in _READ:
                raise ValueError(f"it is a {about['schema']} of version {about['version']}")
            not_run = {int(i): v for i, v in about.get("not_run", {}).items()}
            return _from_rows(about["meta"], not_run, columns)
        except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError, OSError) as error:
            raise FormatError(
                f"{path} is no table of a study ({error}): make it anew with `grash study table`."
            ) from error

    def _rows(self, *, isolated: bool) -> dict[str, list[Any]]:
        """isolated: without the whole graph, which has rows of its own."""
        rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        values = [json.dumps(c, sort_keys=True) for c in self.configurations]
        for g, graph in enumerate(self.graph_fractions[: -1 if isolated else None]):
            sizes = [int(c[g]) for c in self._sizes()]
            for number in range(self.n):
                failed, full = float(self.failed[g, number]), g == len(self.graph_fractions) - 1
                tests = [float(self.test[name][number]) if full else math.nan for name in TESTED]
                for f, epochs in enumerate(self.epoch_fractions):
                    mrr = float(self.valid[g, f, number])
                    if self.measured[g, f] and not math.isnan(mrr):
                        took = float(self.seconds[g, number])
                        row = (number, graph, epochs, isolated, mrr, failed, took, *sizes, *tests, values[number])
                        for name, value in zip(_COLUMNS, row):
                            rows[name].append(value)
        return rows


def _absent(planned: Iterable[float], there: Iterable[float]) -> tuple[float, ...]:
    return tuple(g for g in planned if not any(math.isclose(g, f, rel_tol=_CLOSE) for f in there))


_COLUMNS = (
    "number", "graph_fraction", "epoch_fraction", "isolated", "valid_mrr", "failed_at", "seconds", "entities", "relations",
    "triples", "n_valid", *(f"test_{name}" for name in TESTED), "configuration",
)  # fmt: skip


def table_cells(graphs: StudyGraphs) -> list[Cell]:
    """All cells of a table: the whole graph, chain graphs in half-steps, and those that the default search visits; the
    larger of them also as last rounds have them."""
    numbers, n_train = range(graphs.pool.n), len(graphs.pool.dataset.train)
    usual = [g for g in GRAPHS if g * n_train < n_train - holdout_size(n_train)]  # above that, the chain takes it whole
    wanted: dict[float, list[float]] = {}
    for fraction, epochs in planned_fidelities(graphs):
        wanted.setdefault(fraction, []).extend((epochs / 2, epochs))
    epoch = 1 / graphs.pool.settings.max_epochs  # which some methods begin with
    cells = cells_on("whole", 1.0, numbers, also=[*wanted.pop(1.0, ()), epoch, epoch / 2])
    for fraction in sorted({*usual, *(rounded(f) for f in wanted)}):
        also = [m for f, marks in wanted.items() if rounded(f) == fraction for m in marks]
        cells += cells_on("core-order", fraction, numbers, also=also)
        if isolated_shape((fraction,), graphs.search) is not None:
            cells += cells_on("isolated", fraction, numbers, also=also)
    return cells


def make_table(store: Store, pool: Pool, *, rails: dict[str, float], cells: Sequence[Cell] = ()) -> Table:
    """The table of the chain and whole-graph entries that a store has of a pool; graphs on which nobody was
    trained in full are left out (other studies train on some for a part of the epochs). cells: those of `table_cells`,
    whose graphs the table then knows to be planned."""
    mine = [e for e in store.entries.values() if e.worked and 0 <= e.number < pool.n]
    if not any(e.technique == "whole" and e.marks[-1] == 1 for e in mine):
        raise InputError(
            f"{store.path} has no training on the whole graph yet, and a table needs all of them: run them."
        )
    known: dict[str, Any] = {"guard_rails": rails}
    for name, there in (("planned_graphs", ("core-order", "whole")), ("planned_apart", ("isolated",))) if cells else ():
        known[name] = sorted({c.fraction for c in cells if c.technique in there})
    usual, isolated = (
        _of_entries([e for e in mine if e.technique in (way, "whole")], {**store.meta, **known}, pool)
        for way in ("core-order", "isolated")
    )
    return replace(usual, isolated=isolated if len(isolated.graph_fractions) > 1 else None)


def _of_entries(mine: list[Entry], meta: dict[str, Any], pool: Pool) -> Table:
    """The table of entries on different graphs, the whole one among them."""
    graphs = sorted({e.fraction for e in mine if e.marks[-1] == 1})
    mine = [e for e in mine if e.fraction in graphs]
    marks = sorted({m for e in mine for m in e.marks})
    meta = {**meta, "device": _devices(mine)}
    table = _empty(meta, [c.values for c in pool.configurations], graphs, marks)
    place = {m: f for f, m in enumerate(marks)}
    for entry in mine:
        g, n = graphs.index(entry.fraction), entry.number
        for f, mark in ((place[m], m) for m in entry.marks):
            value = entry.valid(mark)
            table.valid[g, f, n] = math.nan if value is None else value
            table.measured[g, f] = True
        table.failed[g, n] = math.inf if entry.failed is None else entry.failed
        table.seconds[g, n] = entry.seconds
        sizes = (entry.n_entities, entry.n_relations, entry.n_train, entry.n_valid)
        for column, size in zip(table._sizes(), sizes):
            column[g] = size
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
        np.full((G, n), np.inf),
        {name: np.full(n, np.nan) for name in TESTED}, np.full((G, n), np.nan),
        np.zeros(G, np.int64), np.zeros(G, np.int64), np.zeros(G, np.int64), np.zeros(G, np.int64),
    )  # fmt: skip


def _from_rows(meta: dict[str, Any], not_run: dict[int, dict[str, Any]], columns: dict[str, list[Any]]) -> Table:
    """The table, and the one beside it of graphs that hold out apart; older files have none."""
    isolated = np.asarray(columns.get("isolated", [False] * len(columns["number"])), bool)
    whole = np.asarray(columns["graph_fraction"], float) == 1
    found = dict(not_run)
    for number, text in zip(columns["number"], columns["configuration"]):
        if number not in found:
            found[number] = json.loads(text)
    values = [found[i] for i in range(len(found))]
    usual = _of_rows(meta, values, _chosen(columns, ~isolated))
    return (
        replace(usual, isolated=_of_rows(meta, values, _chosen(columns, isolated | whole))) if isolated.any() else usual
    )


def _chosen(columns: dict[str, list[Any]], rows: NDArray[np.bool_]) -> dict[str, list[Any]]:
    return {name: [v for v, taken in zip(values, rows) if taken] for name, values in columns.items()}


def _of_rows(meta: dict[str, Any], values: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Table:
    graphs, marks = sorted(set(columns["graph_fraction"])), sorted(set(columns["epoch_fraction"]))
    table = _empty(meta, values, graphs, marks)
    number = np.asarray(columns["number"])
    g, f = np.searchsorted(graphs, columns["graph_fraction"]), np.searchsorted(marks, columns["epoch_fraction"])
    table.valid[g, f, number], table.measured[g, f] = columns["valid_mrr"], True
    table.failed[g, number] = columns["failed_at"]
    table.seconds[g, number] = columns["seconds"]
    for column, name in zip(table._sizes(), ("entities", "relations", "triples", "n_valid")):
        column[g] = columns[name]
    full = g == len(graphs) - 1
    for name in TESTED:
        table.test[name][number[full]] = np.asarray(columns[f"test_{name}"], float)[full]
    return _filled(table)


def _filled(table: Table) -> Table:
    """Epoch fractions at which a graph was not validated get what lies between their neighbors, in place."""
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


def _devices(entries: list[Entry]) -> str:
    return ", ".join(sorted({e.device for e in entries}))
