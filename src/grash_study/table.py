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
_TESTS = tuple(f"test_{name}" for name in TESTED)
_TECHNIQUES = ("core-order", "isolated", "whole")
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
            numbers, first = np.unique(columns["number"], return_index=True)
            known = {int(n): json.loads(columns["configuration"][i]) for n, i in zip(numbers, first)}
            known.update({int(i): values for i, values in about.get("not_run", {}).items()})
            return _of_columns(about["meta"], [known[i] for i in range(len(known))], columns)
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
        values = [json.dumps(values, sort_keys=True) for values in self.configurations]
        tests = {f"test_{name}": np.where(graphs[g] == 1, self.test[name][number], math.nan) for name in TESTED}
        return {
            "number": number, "graph_fraction": graphs[g], "epoch_fraction": epochs[f],
            "isolated": np.full(len(g), isolated), "valid_mrr": self.valid[g, f, number],
            "failed_at": self.failed[g, number], "seconds": self.seconds[g, number],
            **{name: getattr(self, name)[g] for name in _SIZES}, **tests, "configuration": [values[i] for i in number],
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
    mine = [e for e in store.entries.values() if e.worked and 0 <= e.number < pool.n and e.technique in _TECHNIQUES]
    graphs = {(e.technique, e.fraction) for e in mine if e.marks[-1] == 1}
    if ("whole", 1.0) not in graphs:
        raise InputError(f"{store.path} has no training on the whole graph yet, which a table needs: run them first.")
    mine = [e for e in mine if (e.technique, e.fraction) in graphs]
    rows = [(*_row(e), mark, value) for e in mine for mark in e.marks if (value := e.valid(mark)) is not None]
    names = ("number", "graph_fraction", "isolated", "failed_at", "seconds", *_SIZES, *_TESTS)
    columns = dict(zip((*names, "epoch_fraction", "valid_mrr"), map(np.array, zip(*rows))))
    meta = {**store.meta, "guard_rails": guard_rails, "device": ", ".join(sorted({e.device for e in mine}))}
    return _of_columns(meta, [c.values for c in pool.configurations], columns)


def _row(entry: Entry) -> tuple[Any, ...]:
    """Return what all validations of a training share."""
    failed, tested = math.inf if entry.failed is None else entry.failed, (math.nan,) * len(TESTED)
    if entry.technique == "whole" and entry.marks[-1] == 1:
        tested = tuple(entry.test[name] if entry.test else 0.0 for name in TESTED)
    sizes = (entry.n_entities, entry.n_relations, entry.n_train, entry.n_valid)
    return entry.number, entry.fraction, entry.technique == "isolated", failed, entry.seconds, *sizes, *tested


def _of_columns(meta: dict[str, Any], values: list[dict[str, Any]], columns: dict[str, NDArray[Any]]) -> Table:
    """Return the table of these columns, with a row per validation, and configurations."""
    isolated = columns["isolated"]
    usual, last = (
        _of_graphs(meta, values, {name: column[rows] for name, column in columns.items()})
        for rows in (~isolated, isolated | (columns["graph_fraction"] == 1))
    )
    return replace(usual, isolated=last) if isolated.any() else usual


def _of_graphs(meta: dict[str, Any], values: list[dict[str, Any]], columns: dict[str, NDArray[Any]]) -> Table:
    graphs, g = np.unique(columns["graph_fraction"], return_inverse=True)
    marks, f = np.unique(columns["epoch_fraction"], return_inverse=True)
    number, n, whole = columns["number"], len(values), g == len(graphs) - 1
    valid, failed = np.full((len(graphs), len(marks), n), np.nan), np.full((len(graphs), n), np.inf)
    seconds, test = np.full((len(graphs), n), np.nan), {name: np.full(n, np.nan) for name in TESTED}
    valid[g, f, number], failed[g, number] = columns["valid_mrr"], columns["failed_at"]
    seconds[g, number] = columns["seconds"]
    for name in TESTED:
        test[name][number[whole]] = columns[f"test_{name}"][whole]
    first = [int(np.argmax(g == i)) for i in range(len(graphs))]
    entities, relations, triples, n_valid = (columns[name][first] for name in _SIZES)
    return Table(
        meta, values, tuple(graphs.tolist()), tuple(marks.tolist()), valid, failed, test, seconds,
        entities, relations, triples, n_valid,
    )  # fmt: skip
