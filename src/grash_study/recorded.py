"""A table of recorded trainings in the place of an engine.

`Recorded` is what every method asks: how a pool member scores on a graph fraction after an epoch fraction, what that
costs, when it diverges. It is also the `Graphs` of a schedule. Comes from table.py; goes to table_search.py and
methods/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError, InputError
from grash.reduction.subgraph import holdout_size
from grash.search.named_spaces import space_of
from grash.search.schedule import Shape, isolated_shape
from grash.search.settings import ALIASES, SearchSettings, make_settings
from grash.search.space import Space
from grash_study.pool import OLDER_SETTINGS
from grash_study.table import Table

Scores = NDArray[np.float64]
_MOST_MISSING = 0.1  # of the members: a graph that lacks more of them is left out, rather than they
_HALF_STEP = 2**0.5  # between a table's graphs
_CLOSE = 1e-6
_JUDGED = {  # settings that a table can judge
    "n_trials", "eta", "budget", "variant", "guard_rails", "carry_over", "trend", "last_round_holdout", "seed",
}  # fmt: skip


class Recorded:
    """A table, ready to be asked: letters are G graphs, F epoch fractions, n pool members.

    Only members that have been trained in full on every graph take part (`members` are their numbers in the pool); a
    subgraph that lacks more than a tenth of them is left out instead. notes: sentences on what is left out or missing.
    asked: the graph fractions that scores were asked for. isolated: the same members on graphs that hold out as a last
    round does, where the table has these.
    """

    def __init__(self, table: Table, main: Recorded | None = None) -> None:
        """main: the one that this is `apart` of, whose members it has."""
        self.notes = _notes(table) if main is None else ()
        self.table = table = _without_thin(table)
        self.members: NDArray[np.intp] = np.flatnonzero(_run_in_full(table)) if main is None else main.members
        self.asked: set[float] = set() if main is None else main.asked
        self.n, self.name = len(self.members), str(table.meta["dataset"])
        if self.n < 2:
            raise InputError(
                f"The table of {self.name} has {self.n} configurations that were trained on every graph, and a method "
                f"chooses among 2 or more: run `grash study table` to its end."
            )
        self.fractions: Scores = np.asarray(table.graph_fractions, float)
        self.epochs: Scores = np.concatenate([[0.0], table.epoch_fractions])
        self.failed: Scores = table.failed[:, self.members]  # (G, n)
        self.curves = _curves(self.epochs, table.valid[:, :, self.members], self.failed)  # (G, F + 1, n)
        self.truth: Scores = table.test["mrr"][self.members]  # (n,)
        self.sizes = {name: np.asarray(getattr(table, name)) for name in ("entities", "triples", "n_valid")}
        self.n_entities, self.n_train = int(self.sizes["entities"][-1]), int(self.sizes["triples"][-1])
        self.max_epochs = float(table.meta["epochs"])
        self._kept_shape = lru_cache(maxsize=4096)(self._shape)
        self.smallest_fraction = lru_cache(maxsize=64)(self._smallest_fraction)
        self._kept_scores = lru_cache(maxsize=4096)(self._scores)
        self.rises = lru_cache(maxsize=4096)(self._rises)
        self.part_seen = lru_cache(maxsize=4096)(self._part_seen)
        self._settings = lru_cache(maxsize=256)(self._make_settings)
        self.isolated = None if table.isolated is None else Recorded(table.isolated, self)

    @property
    def valid_pairs_isolated(self) -> bool:
        return self.isolated is not None

    def judge(self, isolated: bool) -> Recorded:
        """Who answers for a round that holds out as the last does, or as the others."""
        return self.isolated if isolated and self.isolated is not None else self

    def last_judge(self, g: float) -> Recorded:
        """Who answers for a last round on a graph fraction, as a search would hold out there."""
        return self.judge(isolated_shape((g,), self) is not None)

    def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        return self.judge(isolated)._kept_shape(fractions)

    def scores(self, g: float, e: float) -> Scores:
        """(n,) what trials on that graph score after e of a full run's epochs; NaN where they have diverged by then.

        As `Table.score` at e/2 and at e, of which the better counts as in a search (docs/decisions/0018).
        """
        self.asked.add(g)
        return self._kept_scores(g, e)

    def _scores(self, g: float, e: float) -> Scores:
        near, _, _ = self.table.neighbors(g)
        return np.where(self.failed[near] <= e, np.nan, np.maximum(*self._validations(g, e)))

    def answered_by(self, g: float) -> float | None:
        """The graph that answers for one which the table should have and has not: its largest subgraph for a fraction
        that a planned one, or one a half-step larger, would answer; the whole graph where there is no subgraph. None
        where nothing is amiss."""
        below = self.fractions[self.fractions < 1].tolist()
        if g >= 1 or not below:
            return None if g >= 1 else 1.0
        largest = below[-1]
        lacks = any(largest < planned < 1 for planned in self.table.missing)
        limit = largest * (1 + _CLOSE) if lacks else largest * _HALF_STEP * (1 - _CLOSE)
        return float(largest) if g > limit else None

    def _rises(self, g: float, e: float) -> Scores:
        """(n,) how far a trial's second validation lies above its first; 0 if it does not."""
        half, whole = self._validations(g, e)
        return np.maximum(0.0, whole - half)

    def _validations(self, g: float, e: float) -> tuple[Scores, Scores]:
        """(n,) after half and after all of a trial's epochs."""
        return self._at(g, e / 2), self._at(g, e)

    @cached_property
    def full_scores(self) -> Scores:
        """(n,) what full runs score that are validated all along, as a training by itself is: their best validation."""
        return np.where(self.failed[-1] <= 1, np.nan, self.curves[-1].max(axis=0))

    def _at(self, g: float, e: float) -> Scores:
        near, far, share = self.table.neighbors(g)
        there, beyond = self._at_epoch(self.curves[near], e), self._at_epoch(self.curves[far], e)
        return np.where(self.failed[far] <= e, there, (1 - share) * there + share * beyond)

    def _at_epoch(self, curves: Scores, e: float) -> Scores:
        above = min(max(1, int(np.searchsorted(self.epochs, e))), len(self.epochs) - 1)
        low, high = self.epochs[above - 1], self.epochs[above]
        share = (e - low) / (high - low)
        return (1 - share) * curves[above - 1] + share * curves[above]

    def _part_seen(self, g: float, e: float) -> Scores:
        """(n,) the share of a trial's positives that are seen: 1, or less where it diverges."""
        return np.minimum(1.0, self.failed[self.table.neighbors(g)[0]] / e)

    @cached_property
    def points(self) -> Points:
        return points_of(self.table.meta, [self.table.configurations[i] for i in self.members])

    def best_of(self, numbers: Sequence[int]) -> float:
        """The best test MRR at full fidelity among members."""
        return float(self.truth[list(numbers)].max()) if len(numbers) else 0.0

    def _shape(self, fractions: tuple[float, ...]) -> Shape:
        g = fractions[-1] if fractions else 1.0
        if g * self.n_train < self.n_train - holdout_size(self.n_train):
            return self.table.shape(g)
        return self.table.shape(1.0)  # the chain takes the whole graph where it fits without its validation part

    def _smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """The smallest fraction with so many entities and validation triples: known for the rails of the search, else
        between recorded sizes in logarithms."""
        rails = self.table.meta.get("guard_rails", {})
        if (rails.get("n_entities"), rails.get("n_valid")) == (n_entities, n_valid):
            return float(rails["fraction"])
        if n_entities > self.n_entities:
            return 1.0
        sizes = {name: np.maximum.accumulate(self.sizes[name]) for name in ("entities", "n_valid")}
        sizes["n_valid"][-1] = max(sizes["n_valid"][-1], n_valid)  # beyond it the graph comes with its own
        wanted = {"entities": n_entities, "n_valid": n_valid}
        return min(1.0, max(_crossing(self.fractions, sizes[name], wanted[name]) for name in sizes))

    def settings(self, preset: str, budget: float, changes: Sequence[tuple[str, Any]]) -> SearchSettings:
        """A preset with changes. One that only acts on trainings, cuts or draws is refused, since its row would be the
        default's whatever it says; what a preset says of these is passed over."""
        given = {ALIASES.get(name, name): value for name, value in changes}
        for name in (n for n in given if n in SearchSettings.model_fields and n not in _JUDGED):
            raise ConfigError(
                f"{name}={given[name]} cannot be judged on a table, all of whose trainings are of "
                f"{name}={getattr(self._trained, name)}: leave it out, or run real searches for it."
            )
        return self._settings(preset, budget, tuple(given.items()))

    @cached_property
    def _trained(self) -> SearchSettings:
        """Those of a search whose trainings the table has."""
        meta = self.table.meta
        named = ("dim", "space", "fixed", "degree", "guarded_split", "negatives_floor", "scaled_penalties")
        known = {
            **OLDER_SETTINGS,
            **{name: meta[name] for name in named if name in meta},
        }  # older tables lack the newer
        own = {"models": (meta["model"],), "max_epochs": self.max_epochs, "proposals": "random", "final_train": False}
        return make_settings({**known, **own})

    def _make_settings(self, preset: str, budget: float, changes: tuple[tuple[str, Any], ...]) -> SearchSettings:
        own = {name: getattr(self._trained, name) for name in ("models", "dim", "max_epochs", "final_train")}
        n_trials = min(self.n, int(SearchSettings.model_fields["n_trials"].default))
        return make_settings({**own, "budget": budget, "n_trials": n_trials, **dict(changes)}, preset=preset)


def _run_in_full(table: Table) -> NDArray[np.bool_]:
    """(n,) who was trained in full on every graph."""
    several = [_runs(table)] if table.isolated is None else [_runs(table), _runs(table.isolated)]
    return np.logical_and.reduce(np.concatenate(several))


def _runs(table: Table) -> NDArray[np.bool_]:
    """(G, n) who was trained in full on which graph, and tested where it is the whole one."""
    run = ~np.isnan(table.valid[:, -1]) | np.isfinite(table.failed)
    run[-1] &= ~np.isnan(table.test["mrr"])
    return run


def _thin_graphs(table: Table) -> dict[int, int]:
    """Places of the subgraphs that lack more than a tenth of those who were trained on most graphs, with how many they
    lack; none where that would leave no subgraph."""
    usual = _runs(table)[-1] & (_runs(table).mean(axis=0) >= 0.5)
    thin = _all_thin(table, usual)
    return thin if len(thin) < len(table.graph_fractions) - 1 else {}


def _all_thin(table: Table, usual: NDArray[np.bool_] | None = None) -> dict[int, int]:
    """The same however many they are. usual: those whom a graph should have, by default all that the whole one has."""
    run = _runs(table)
    usual = run[-1] if usual is None else usual
    lacks = {g: int((usual & ~run[g]).sum()) for g in range(len(run) - 1)}
    return {g: n for g, n in lacks.items() if n > _MOST_MISSING * usual.sum()}


def _without_thin(table: Table) -> Table:
    """Both tables without their thin graphs; without the one of last rounds where all of its subgraphs are."""
    isolated = table.isolated
    if isolated is not None:
        thin = _all_thin(isolated)
        isolated = isolated.without(thin) if len(thin) < len(isolated.graph_fractions) - 1 else None
    return replace(table.without(_thin_graphs(table)), isolated=isolated)


def _notes(table: Table) -> tuple[str, ...]:
    """What the table lacks of its graphs, in sentences."""
    found, to_its_end = [], "run `grash study table` to its end."
    for missing, how in ((table.missing, ""), (table.missing_apart, " as last rounds have them (`apart`)")):
        if missing:
            fractions = ", ".join(f"{g:.3g}" for g in missing)
            found.append(
                f"The table is incomplete: nobody was trained on the graph fractions {fractions}{how}, for which the "
                f"graphs beside them answer; {to_its_end}"
            )
    thin = [(table, g, n, "") for g, n in _thin_graphs(table).items()]
    if table.isolated is not None:
        thin += [
            (table.isolated, g, n, " as last rounds have it (`apart`)") for g, n in _all_thin(table.isolated).items()
        ]
    for part, g, n, how in thin:
        found.append(
            f"The graph fraction {part.graph_fractions[g]:.3g}{how} is left out: {n} configurations were not trained "
            f"on it, and the graphs beside it answer instead; {to_its_end}"
        )
    if "planned_graphs" in table.meta and "planned_apart" not in table.meta:
        found.append(
            "The table is older than last rounds that hold out triples like the dataset's own (`apart`); if they would "
            "here, the default search is judged without until `grash study table` is run again."
        )
    return tuple(found)


def _curves(epochs: Scores, valid: Scores, failed: Scores) -> Scores:
    """(G, F + 1, n) validation MRR at every epoch fraction, from 0 on: between measured ones straight lines, and after
    a divergence what was last measured before it."""
    curves = np.zeros((len(valid), len(epochs), valid.shape[2]))
    for g, i in np.ndindex(failed.shape):
        there = ~np.isnan(valid[g, :, i]) & (epochs[1:] < failed[g, i])
        marks, values = epochs[1:][there], valid[g, there, i]
        curves[g, :, i] = np.interp(epochs, np.append(0.0, marks), np.append(0.0, values))
    return curves


def _crossing(fractions: Scores, sizes: Scores, wanted: float) -> float:
    """The first fraction at which sizes, rising along them, reach what is wanted; the smallest of all below that."""
    at = int(np.searchsorted(sizes, wanted))
    if at == 0:
        return float(fractions[0])
    low, high, aim = (math.log(max(1, s)) for s in (sizes[at - 1], sizes[at], wanted))
    x0, x1 = math.log(fractions[at - 1]), math.log(fractions[at])
    return math.exp(x0 + (aim - low) / (high - low) * (x1 - x0))


# = Pool members as points: numbers in the unit cube of their space, choices as codes, and how far apart they are.
# =
# = Comes from recorded.py; goes to parzen.py and gaussian.py, which guess from the members seen which others are good, and
# = to draws.py.

_WIDTH = 0.15  # standard deviation of a number's kernel, in the unit interval
_LEAK = 0.25  # of a choice's weight to its other values


@dataclass(frozen=True, eq=False)
class Points:
    """numbers (n, D) in [0, 1], 0.5 where a parameter does not count; codes (n, C) of choices, −1 where it does not.

    counts (n, D + C): whether a parameter counts, numbers first.
    """

    space: Space
    numbers: NDArray[np.float64]
    codes: NDArray[np.int64]
    counts: NDArray[np.bool_]
    n_choices: tuple[int, ...]  # of each column of codes

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """(n, n) in the unit cube; two choices that differ are as far apart as the ends of a range."""
        squares = np.square(self.numbers[:, None] - self.numbers[None]).sum(axis=2)
        return np.sqrt(squares + (self.codes[:, None] != self.codes[None]).sum(axis=2))

    @cached_property
    def kernels(self) -> NDArray[np.float64]:
        """(D + C, n, n): the density at member j of a kernel around member i, by parameter, over the uniform one; 0
        where it does not count for both. Normal within [0, 1] for numbers, Aitchison-Aitken for choices."""
        found = [_normal(column) for column in self.numbers.T]
        for column, k in zip(self.codes.T, self.n_choices):
            found.append(np.where(column[:, None] == column[None], k * (1 - _LEAK), k * _LEAK / max(1, k - 1)))
        both = self.counts.T[:, :, None] & self.counts.T[:, None, :]
        return np.where(both, np.stack(found), 0.0)

    def place(self, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(D,) numbers and (C,) codes of a configuration of the space."""
        return _placed(self.space, values)


def points_of(meta: Mapping[str, Any], configurations: list[dict[str, Any]]) -> Points:
    """The points of these configurations (values of trainings) in the space that a table was drawn from."""
    space = space_of(meta["space"], meta["model"], n_entities=meta.get("n_entities"))
    space = space.with_fixed({**({} if "dim" in space.searched else {"dim": meta["dim"]}), **meta.get("fixed", {})})
    known = [space.check(values) for values in configurations]
    numbers, codes = (np.stack(column) for column in zip(*(_placed(space, values) for values in known)))
    order = sorted(
        space.searched, key=lambda n: space.parameters[n].kind == "choice"
    )  # numbers first, else as they are
    counts = np.array([[name in values for name in order] for values in known])
    choices = [space.parameters[n] for n in space.searched if space.parameters[n].kind == "choice"]
    return Points(space, numbers, codes, counts, tuple(len(c.values) for c in choices))


def _normal(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, n) normal densities around places (n,), each cut off at 0 and 1."""
    inside = [math.erf((1 - c) / (_WIDTH * math.sqrt(2))) + math.erf(c / (_WIDTH * math.sqrt(2))) for c in places]
    bell = np.exp(-np.square(places[:, None] - places[None]) / (2 * _WIDTH**2))
    return bell / (_WIDTH * math.sqrt(2 * math.pi) * 0.5 * np.array(inside)[:, None])


def _placed(space: Space, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    numbers, codes = [], []
    for name in space.searched:
        parameter = space.parameters[name]
        if parameter.kind != "choice":
            numbers.append(parameter.point(values[name]) if name in values else 0.5)
        else:
            code = int(parameter.point(values[name]) * len(parameter.values)) if name in values else -1
            codes.append(code)
    return np.array(numbers), np.array(codes, np.int64)
