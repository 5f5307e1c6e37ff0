"""A table in place of an engine: `Recorded` answers what a pool member scores at a fidelity, and simulates searches.

It is also the `Graphs` of a schedule, so rounds are planned and decided by the product's own code
(`search.schedule`, `search.halving`). Comes from table.py, goes to methods.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.errors import ConfigError, InputError
from grash.reduction.subgraph import holdout_size
from grash.search.halving import new_state, simulate
from grash.search.ledger import SearchState
from grash.search.schedule import Shape, cost_of, fitting_trials, isolated_shape, round_sizes
from grash.search.settings import ALIASES, SearchSettings, make_settings
from grash.search.trial import Configuration, Round, TrialResult
from grash_study.table import Table

Scores = NDArray[np.float64]
_JUDGED = {  # settings that a table can judge
    "n_trials", "eta", "budget", "variant", "guard_rails", "carry_over", "trend", "last_round_holdout", "seed",
}  # fmt: skip


class Recorded:
    """A table that methods ask for scores: G graphs, F epoch fractions, n pool members.

    Members are the configurations that were trained in full on every graph. `isolated` answers for last rounds that
    hold out isolated pairs, if the table has them.
    """

    def __init__(self, table: Table, main: Recorded | None = None) -> None:
        """main: the one whose `isolated` this is."""
        self.table = table
        self.members: NDArray[np.intp] = np.flatnonzero(_complete_members(table)) if main is None else main.members
        self.n, self.name = len(self.members), str(table.meta["dataset"])
        if self.n < 2:
            raise InputError(
                f"The table of {self.name} has {self.n} configurations that were trained on every graph, and a method "
                f"needs 2 or more: run `grash study table` until it is complete."
            )
        self.fractions: Scores = np.asarray(table.graph_fractions, float)
        self.epochs: Scores = np.concatenate([[0.0], table.epoch_fractions])
        self.failed: Scores = table.failed[:, self.members]  # (G, n)
        self.curves = _curves(self.epochs, table.valid[:, :, self.members], self.failed)  # (G, F + 1, n)
        self.truth: Scores = table.test["mrr"][self.members]  # (n,)
        self.n_entities, self.n_train = int(table.entities[-1]), int(table.triples[-1])
        self.max_epochs = float(table.meta["epochs"])
        self.smallest_fraction = lru_cache(maxsize=64)(self._smallest_fraction)
        self.scores = lru_cache(maxsize=4096)(self._scores)
        self.rises = lru_cache(maxsize=4096)(self._rises)
        self.part_seen = lru_cache(maxsize=4096)(self._part_seen)
        self.shape = lru_cache(maxsize=4096)(self._shape)
        self._settings = lru_cache(maxsize=256)(self._make_settings)
        self.isolated = None if table.isolated is None else Recorded(table.isolated, self)

    @property
    def valid_pairs_isolated(self) -> bool:
        return self.isolated is not None

    def judge(self, isolated: bool) -> Recorded:
        """Return who answers for a round that holds out isolated pairs, or random triples."""
        return self.isolated if isolated and self.isolated is not None else self

    def last_judge(self, g: float) -> Recorded:
        """Return who answers for a last round on a graph fraction."""
        return self.judge(isolated_shape((g,), self) is not None)

    def valid_at(self, g: float, e: float) -> Scores:
        """Return (n,) validation MRR at a graph and an epoch fraction, interpolated between recorded ones.

        If a training diverged by then on the farther of two graphs, the nearer one alone counts.
        """
        near, other, share = self.table.neighbors(g)
        there, beyond = self._at_epoch(self.curves[near], e), self._at_epoch(self.curves[other], e)
        return np.where(self.failed[other] <= e, there, (1 - share) * there + share * beyond)

    @cached_property
    def full_scores(self) -> Scores:
        """(n,) best validation of full runs, which are validated regularly; NaN if diverged."""
        return np.where(self.failed[-1] <= 1, np.nan, self.curves[-1].max(axis=0))

    def best_of(self, numbers: Sequence[int]) -> float:
        """Return the best test MRR at full fidelity among members."""
        return float(self.truth[list(numbers)].max()) if len(numbers) else 0.0

    def settings(self, preset: str, budget: float, changes: Sequence[tuple[str, Any]]) -> SearchSettings:
        """Return a preset with changes; a setting that acts on trainings, subgraphs or draws is an error."""
        given = {ALIASES.get(name, name): value for name, value in changes}
        for name in (n for n in given if n in SearchSettings.model_fields and n not in _JUDGED):
            raise ConfigError(
                f"{name}={given[name]} cannot be judged on a table, whose trainings were made with one value of it: "
                f"leave it out, or run real searches for it."
            )
        return self._settings(preset, budget, tuple(given.items()))

    def n_first(self, settings: SearchSettings) -> int:
        """Return the number of configurations in the first round."""
        n = fitting_trials(settings, self)
        if n > self.n:
            raise ConfigError(f"n_trials={n} is more than the {self.n} configurations of the table: give fewer.")
        return n

    def planned(self, settings: SearchSettings) -> list[Round]:
        """Return the rounds of a search in which no trial diverges."""
        state = self.search(range(self.n_first(settings)), settings, diverging=False)
        return [past.plan for past in state.rounds]

    def round_scores(self, plan: Round, settings: SearchSettings) -> Scores:
        """Return (n,) score and trend of every member in a round; NaN if it diverges."""
        (g, e), there = _fidelity(plan, settings), self.judge(plan.isolated)
        return there.scores(g, e) + plan.trend * there.rises(g, e)

    def search(self, numbers: Sequence[int], settings: SearchSettings, *, diverging: bool = True) -> SearchState:
        """Simulate a search among these members; configuration i is member numbers[i].

        diverging: if false, what diverges scores 0 after all its epochs.
        """

        def run_trials(number: int, configurations: Sequence[int]) -> list[TrialResult]:
            plan = state.rounds[number - 1].plan
            before = state.rounds[number - 2].plan.positives if plan.continues else 0
            (g, e), there = _fidelity(plan, settings), self.judge(plan.isolated)
            scores, rises, seen = (x.tolist() for x in (there.scores(g, e), there.rises(g, e), there.part_seen(g, e)))
            if not diverging:
                scores = np.nan_to_num(scores).tolist()
            results = []
            for i in configurations:
                score, rise, diverged = scores[numbers[i]], rises[numbers[i]], math.isnan(scores[numbers[i]])
                last = math.floor(plan.positives * seen[numbers[i]]) if diverged else plan.positives
                positives = max(0, last - before)
                cost = float(cost_of(positives, settings, self.n_train))
                shared: dict[str, Any] = {"epochs_before": before / plan.n_train, "positives": positives, "cost": cost}
                history = [{"epoch": plan.epochs / 2, "mrr": score - rise}, {"epoch": plan.epochs, "mrr": score}]
                results.append(
                    TrialResult(number, i, 1, "diverged", message="diverged", **shared) if diverged
                    else TrialResult(number, i, 1, "ok", mrr=score, history=history, **shared)
                )  # fmt: skip
            return results

        configurations = [Configuration(i, {}, "table") for i in range(len(numbers))]
        state = new_state(settings, configurations, round_sizes(len(numbers), settings.eta))
        return simulate(state, settings, self, run_trials)

    def _scores(self, g: float, e: float) -> Scores:
        """(n,) scores of trials on a graph fraction after e of the epochs; NaN if diverged by then.

        A score is the better of the validations at e/2 and e, as in a search (docs/decisions/0018).
        """
        near, _, _ = self.table.neighbors(g)
        return np.where(self.failed[near] <= e, np.nan, np.maximum(self.valid_at(g, e / 2), self.valid_at(g, e)))

    def _rises(self, g: float, e: float) -> Scores:
        """(n,) by how much a trial's second validation exceeds its first; 0 if it does not."""
        return np.maximum(0.0, self.valid_at(g, e) - self.valid_at(g, e / 2))

    def _part_seen(self, g: float, e: float) -> Scores:
        """(n,) share of a trial's positives that it sees: 1, or less if it diverges."""
        return np.minimum(1.0, self.failed[self.table.neighbors(g)[0]] / e)

    def _at_epoch(self, curves: Scores, e: float) -> Scores:
        above = min(max(1, int(np.searchsorted(self.epochs, e))), len(self.epochs) - 1)
        low, high = self.epochs[above - 1], self.epochs[above]
        share = (e - low) / (high - low)
        return (1 - share) * curves[above - 1] + share * curves[above]

    def _shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        table, g = self.judge(isolated).table, fractions[-1] if fractions else 1.0
        if g * self.n_train < self.n_train - holdout_size(self.n_train):
            return table.shape(g)
        return table.shape(1.0)  # a search takes the whole graph if only its validation part would be left out

    def _smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """Return the smallest fraction with these sizes; interpolated unless the guard rails ask for exactly these."""
        known = self.table.meta.get("guard_rails", {})
        if (known.get("n_entities"), known.get("n_valid")) == (n_entities, n_valid):
            return float(known["fraction"])
        if n_entities > self.n_entities:
            return 1.0
        entities, valid = (np.maximum.accumulate(sizes) for sizes in (self.table.entities, self.table.n_valid))
        valid[-1] = max(valid[-1], n_valid)  # the whole graph has its own
        wanted = ((entities, n_entities), (valid, n_valid))
        logs = [
            np.interp(math.log(size), np.log(np.maximum(1, sizes)), np.log(self.fractions)) for sizes, size in wanted
        ]
        return min(1.0, math.exp(max(logs)))

    def _make_settings(self, preset: str, budget: float, changes: tuple[tuple[str, Any], ...]) -> SearchSettings:
        meta = self.table.meta
        own = {"models": (meta["model"],), "dim": meta["dim"], "max_epochs": self.max_epochs, "final_train": False}
        n_trials = min(self.n, int(SearchSettings.model_fields["n_trials"].default))
        simulated = {**own, "finalists": 0, "budget": budget, "n_trials": n_trials}
        return make_settings({**simulated, **dict(changes)}, preset=preset)


def _fidelity(plan: Round, settings: SearchSettings) -> tuple[float, float]:
    return (1.0 if plan.whole else plan.graph_fraction), min(1.0, plan.epochs / settings.max_epochs)


def _complete_members(table: Table) -> NDArray[np.bool_]:
    """(n,) which were trained in full on every graph, and tested."""
    parts = [table] if table.isolated is None else [table, table.isolated]
    trained = [~np.isnan(part.valid[:, -1]) | np.isfinite(part.failed) for part in parts]
    return np.concatenate(trained).all(axis=0) & ~np.isnan(table.test["mrr"])


def _curves(epochs: Scores, valid: Scores, failed: Scores) -> Scores:
    """Return (G, F + 1, n) validation MRR from epoch 0 on: linear between measured ones, then constant."""
    curves = np.zeros((len(valid), len(epochs), valid.shape[2]))
    for g, i in np.ndindex(failed.shape):
        there = ~np.isnan(valid[g, :, i]) & (epochs[1:] < failed[g, i])
        marks, values = epochs[1:][there], valid[g, there, i]
        curves[g, :, i] = np.interp(epochs, np.append(0.0, marks), np.append(0.0, values))
    return curves
