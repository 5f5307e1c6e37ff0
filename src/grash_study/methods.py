"""Search methods that choose from a pool, all of the form `run(bench, rng, budget, **settings) -> Trace`.

All methods of a seed start with the same random order of the pool, so they are compared in pairs. The final training
of the pick is outside the budget of all. A table has no other configurations than its pool's: a point that the
portfolio or TPE proposes is replaced by the nearest free member.

`--sweep` compares changes of the default search, each by itself (`sweep.yaml`); a YAML file can list others.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, create_model

from grash.errors import ConfigError, UnknownName
from grash.search.named_spaces import space_of
from grash.search.proposals import propose
from grash.search.schedule import MAX_SUBGRAPH, MIN_VALID, least_fraction, min_entities, round_sizes
from grash.search.settings import SearchSettings
from grash.search.space import Space
from grash.training.config import Settings
from grash.yaml_files import read_yaml
from grash_study.recorded import Recorded, Scores

Count = Annotated[int, Field(ge=1)]
Eta = Annotated[int, Field(ge=2)]
Share = Annotated[float, Field(ge=0)]
_SLACK = 1e-9  # of a full run: the rounding error of sums of costs
_DEVIATION = 0.35  # of a reciprocal rank, about; two ranks per validation triple
TPE_STARTUP = 10  # random runs before TPE proposes, as in Optuna
KGTUNER_GRAPH = 0.2  # of the graph, in KGTuner's first stage
AUTONE_KAPPA = 2.576  # standard deviations in AutoNE's upper confidence bound, as published
AUTONE_LARGEST = 1 / 8  # of the graph: AutoNE learns on smaller ones


@dataclass(frozen=True)
class Trace:
    """What a method did. Members are indices of `Recorded`'s arrays."""

    points: tuple[tuple[float, int], ...]  # (cost so far in full runs, incumbent) whenever the incumbent changed
    pick: int | None  # what it would train in full; None if nothing has a score
    first: tuple[int, ...]  # the members that it chose among
    cost: float
    levels: tuple[tuple[int, ...], ...] = ()  # members that were trained at each level, the cheapest first

    def test_mrr(self, bench: Recorded) -> float:
        """Return the test MRR of the pick, trained in full; 0 if there is none."""
        return 0.0 if self.pick is None else float(bench.truth[self.pick])


@dataclass
class Tracker:
    """Bills trials and keeps incumbents.

    Trials of a higher level outrank those of a lower one, whatever their score: scores of different graphs are not
    compared.
    """

    bench: Recorded
    budget: float
    cost: float = 0.0
    points: list[tuple[float, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    levels: dict[int, list[int]] = field(default_factory=dict)
    _best: tuple[int, float, int] | None = None  # level, score, member

    def affords(self, cost: float) -> bool:
        return self.cost + cost <= self.budget + _SLACK

    def run(self, members: Sequence[int], g: float, e: float, *, level: int = 0) -> Scores:
        """Return (m,) scores of trials on a graph fraction for an epoch fraction; NaN if diverged."""
        return self.bill(members, self.bench.scores(g, e), g, e, level=level)

    def run_in_full(self, members: Sequence[int], *, level: int = 0, paid: float = 0.0) -> Scores:
        """Return (m,) best validations of full runs, which are validated regularly."""
        return self.bill(members, self.bench.full_scores, 1.0, 1.0, level=level, paid=paid)

    def bill(
        self, members: Sequence[int], scores: Scores, g: float, e: float, *, level: int = 0, paid: float = 0.0,
        seen: Scores | None = None,
    ) -> Scores:  # fmt: skip
        """Record and bill trials with all members' scores (n,); return theirs (m,).

        paid: the share of the epochs that they continue from, which is not billed again. seen: the share of their
        positives that they see, if not that of the table.
        """
        seen = self.bench.part_seen(g, e) if seen is None else seen
        self.levels.setdefault(level, []).extend(members)
        for i in members:
            self.cost += g * max(0.0, float(seen[i]) * e - paid)
            score = float(scores[i])
            if not math.isnan(score) and (self._best is None or (level, score) > self._best[:2]):
                self._best = (level, score, i)
                self.points.append((self.cost, i))
        return scores[list(members)]

    def trace(self) -> Trace:
        pick = None if self._best is None else self._best[2]
        levels = tuple(tuple(self.levels[level]) for level in sorted(self.levels))
        return Trace(tuple(self.points), pick, tuple(self.first), self.cost, levels)


def best_first(members: Sequence[int], scores: Scores) -> list[int]:
    """Return the members with a score, the best first; ties keep their order."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return [members[i] for i in order if not math.isnan(scores[i])]


def draw(
    bench: Recorded,
    rng: np.random.Generator,
    count: int,
    *,
    how: str = "random",
    scores: NDArray[np.float64] | None = None,
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
) -> list[int]:
    """Return `count` different members. The random order of a seed is the same for every method.

    waves: a share `first` is random, the rest is proposed by TPE from `scores` (n,) in the first round, `batch` at a
    time (default: all at once); with probability `uniform`, one of these is random too.
    """
    order = [int(i) for i in rng.permutation(bench.n)]
    if how == "random":
        return order[:count]
    if how == "portfolio":
        return _near_portfolio(bench, int(rng.integers(2**31)), count)
    if how != "waves" or scores is None:
        raise UnknownName("draw", how, ("random", "portfolio", "waves"))
    chosen = order[: max(1, round(first * count))]
    free = np.ones(bench.n, bool)
    free[chosen] = False
    proposer = Proposer(points_of(bench))
    for member in chosen:
        proposer.see(member, scores[member])
    while len(chosen) < count:
        wave = []
        for _ in range(min(batch or count, count - len(chosen))):
            by_chance = rng.random() < uniform
            wave.append(next(i for i in order if free[i]) if by_chance else proposer.propose(free))
            free[wave[-1]] = False
        for member in wave:
            proposer.see(member, scores[member])
        chosen += wave
    return chosen


@dataclass(frozen=True, eq=False)
class Points:
    """Pool members as points."""

    space: Space
    numbers: NDArray[np.float64]  # (n, D) in [0, 1]; 0.5 where a parameter is not used
    codes: NDArray[np.int64]  # (n, C) of choices; −1 where a parameter is not used
    used: NDArray[np.bool_]  # (n, D + C)
    n_choices: tuple[int, ...]  # of each column of codes

    def nearest(self, numbers: NDArray[np.float64], codes: NDArray[np.int64], free: NDArray[np.bool_]) -> int:
        """Return the free member nearest to a point; two different choices have distance 1."""
        squares = np.square(self.numbers - numbers).sum(axis=1) + (self.codes != codes).sum(axis=1)
        return int(np.argmin(np.where(free, squares, np.inf)))

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """(n, D + all choices) numbers, and choices as one-hot columns with the same distances as `nearest`."""
        one_hot = [(column[:, None] == np.arange(k)) / np.sqrt(2) for column, k in zip(self.codes.T, self.n_choices)]
        return np.concatenate([self.numbers, *one_hot], axis=1)


@lru_cache(maxsize=8)
def points_of(bench: Recorded) -> Points:
    """Return the members of a table as points of the space that they were drawn from."""
    return make_points(bench.table.meta, [bench.table.configurations[i] for i in bench.members])


def make_points(meta: Mapping[str, Any], configurations: list[dict[str, Any]]) -> Points:
    space = space_of(meta["space"], meta["model"], n_entities=meta.get("n_entities"))
    space = space.with_fixed({**({} if "dim" in space.searched else {"dim": meta["dim"]}), **meta.get("fixed", {})})
    known = [space.check(values) for values in configurations]
    numbers, codes = (np.stack(column) for column in zip(*(_point(space, values) for values in known)))
    columns = sorted(space.searched, key=lambda n: space.parameters[n].kind == "choice")  # numbers first
    used = np.array([[name in values for name in columns] for values in known])
    choices = [space.parameters[n] for n in space.searched if space.parameters[n].kind == "choice"]
    return Points(space, numbers, codes, used, tuple(len(c.values) for c in choices))


class Proposer:
    """TPE over the members of a pool: Optuna's densities of good and other members, parameter by parameter.

    Optuna's sampler draws points, of which a pool has few; its own estimators rate every member instead.
    """

    def __init__(self, points: Points) -> None:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
        from optuna.samplers import TPESampler

        self.seen: list[int] = []
        self._scores: list[float] = []
        self._values = [*points.numbers.T, *points.codes.T]  # a column (n,) per parameter
        self._used = points.used.T
        choices = [CategoricalDistribution(tuple(range(k))) for k in points.n_choices]
        self._distributions = [*(FloatDistribution(0, 1) for _ in points.numbers.T), *choices]
        self._sampler = TPESampler()

    def see(self, member: int, score: float) -> None:
        """Learn the score of a member; NaN (diverged) is below all others."""
        self.seen.append(member)
        self._scores.append(-1.0 if np.isnan(score) else float(score))

    def propose(self, free: NDArray[np.bool_]) -> int:
        """Return the free member with the highest ratio of densities."""
        n_best = min(math.ceil(0.1 * len(self._scores)), 25)  # Optuna's default gamma
        best = np.argsort(-np.array(self._scores), kind="stable")[:n_best]
        is_good = np.isin(np.arange(len(self.seen)), best)
        parts = [np.array(self.seen, int)[which] for which in (is_good, ~is_good)]
        ratio = np.zeros(len(free))
        for values, used, distribution in zip(self._values, self._used, self._distributions):
            good, others = (self._log_density(values, part[used[part]], distribution) for part in parts)
            ratio += np.where(used, good - others, 0.0)
        return int(np.argmax(np.where(free, ratio, -np.inf)))

    def _log_density(self, values: NDArray[Any], at: NDArray[np.int64], distribution: Any) -> NDArray[np.float64]:
        """Return (n,) log density of a parameter at every member, estimated from those in `at`."""
        made = self._sampler._parzen_estimator_cls(
            {"x": values[at]}, {"x": distribution}, self._sampler._parzen_estimator_parameters
        )
        return made.log_pdf({"x": np.maximum(values, 0)})  # where a choice is not used (−1), any will do


def _near_portfolio(bench: Recorded, seed: int, count: int) -> list[int]:
    """Return the nearest free member of each of the portfolio's proposals: its taste, not its winners."""
    points, model = points_of(bench), bench.table.meta["model"]
    free = np.ones(bench.n, bool)
    chosen = []
    for proposal in propose(points.space, "portfolio", count, seed=seed, model=model, n_entities=bench.n_entities):
        chosen.append(points.nearest(*_point(points.space, proposal.values), free))
        free[chosen[-1]] = False
    return chosen


def _point(space: Space, values: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return (D,) numbers and (C,) codes of a configuration."""
    numbers, codes = [], []
    for name in space.searched:
        parameter = space.parameters[name]
        if parameter.kind != "choice":
            numbers.append(parameter.point(values[name]) if name in values else 0.5)
        else:
            codes.append(int(parameter.point(values[name]) * len(parameter.values)) if name in values else -1)
    return np.array(numbers), np.array(codes, np.int64)


def run_grash(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    preset: str = "default",
    how: str = "random",
    first: Share = 0.5,
    batch: Count | None = None,
    uniform: Share = 0.0,
    **settings: Any,
) -> Trace:
    """Run a search by the product's own decisions. how, first, batch, uniform: its first configurations (`draw`).

    On a table, graphs are cut along the core order and negatives are scaled by the default rule for every preset.
    """
    made = bench.settings(preset, budget, tuple(settings.items()))
    scores = bench.round_scores(bench.planned(made)[0], made) if how == "waves" else None
    numbers = draw(bench, rng, bench.n_first(made), how=how, scores=scores, first=first, batch=batch, uniform=uniform)
    state = bench.search(numbers, made)
    points: list[tuple[float, int]] = []
    cost = 0.0
    for past in state.rounds:  # the incumbent is the best so far of the highest round with a score
        best = -1.0
        for i, result in past.results.items():
            cost += result.cost
            if result.mrr is not None and (judged := result.mrr + past.plan.trend * result.rise) > best:
                best = judged
                points.append((cost, numbers[i]))
    pick = None if state.winner is None else numbers[state.winner]
    levels = tuple(tuple(numbers[i] for i in past.results) for past in state.rounds)
    return Trace(tuple(points), pick, tuple(numbers), cost, levels)


def run_tpe_rounds(
    bench: Recorded, rng: np.random.Generator, budget: float, *, uniform: Share = 1 / 3, **settings: Any
) -> Trace:
    """Run the rounds of a search whose first-round trials TPE proposes, as BOHB does (with `variant="epoch"`).

    Members enter the first round one by one. Once there are two more than parameters, two of three are proposed.
    """
    changes = tuple((k, v) for k, v in settings.items() if k != "preset")
    n = bench.n_first(bench.settings(settings.get("preset", "default"), budget, changes))
    enough = len(points_of(bench).space.searched) + 2
    return run_grash(bench, rng, budget, how="waves", first=min(1.0, enough / n), batch=1, uniform=uniform, **settings)


def run_hyperband(
    bench: Recorded, rng: np.random.Generator, budget: float, *, n: Count = 64, eta: Eta = 4, guard_rails: bool = True
) -> Trace:
    """Run Hyperband's brackets one after the other, the one with most configurations first.

    Bracket k starts with round k of a search and has 2/(s + 1) of the trials of its s rounds, so all cost the budget.
    Finalists are compared on one graph, with the validation triples of a search's last round.
    """
    sizes = round_sizes(min(n, bench.n), eta)
    rounds = len(sizes)
    fidelities = [min(1.0, budget / rounds / size) for size in sizes]
    counts = [max(1, int(size * 2 / (rounds + 1) + 1e-9)) for size in sizes]
    order = draw(bench, rng, bench.n)
    tracker, least = Tracker(bench, budget), smallest_graph(bench) if guard_rails else 0.0
    for bracket in range(rounds):
        entrants = order[len(tracker.first) : len(tracker.first) + counts[bracket]]
        tracker.first += entrants
        for i in range(bracket, rounds):
            g, e = split(bench, fidelities[i], least=least)
            entrants = entrants[: counts[i]]
            if not entrants or not tracker.affords(g * e * len(entrants)):
                break
            judge = bench.last_judge(g) if i == rounds - 1 else bench
            seen = judge.part_seen(g, e)
            entrants = best_first(entrants, tracker.bill(entrants, judge.scores(g, e), g, e, level=i, seen=seen))
    return tracker.trace()


def run_random(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """Train random members in full while the budget lasts. What a run that diverges did not use buys another."""
    return run_tpe(bench, rng, budget, first=bench.n)


def run_tpe(bench: Recorded, rng: np.random.Generator, budget: float, *, first: Count = TPE_STARTUP) -> Trace:
    """Train members in full that TPE proposes, after `first` random ones; up to these it is random search."""
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    _propose_and_run(
        tracker, order, first=first, proceed=lambda: tracker.affords(1.0),
        run=lambda member: float(tracker.run_in_full([member])[0]),
    )  # fmt: skip
    return tracker.trace()


def run_one_epoch(bench: Recorded, rng: np.random.Generator, budget: float, *, n: Count = 64, least: int = 2) -> Trace:
    """Train n members for one epoch, then continue with the best in full (Egele et al. 2023, arXiv 2307.15422).

    There are fewer than n if the budget would not leave `least` full runs.
    """
    epoch = min(1.0, 1.0 / bench.max_epochs)
    fitting = math.floor((budget - least * (1.0 - epoch)) / epoch + 1e-9)
    if fitting < 2:  # too little for full runs
        fitting = math.floor(budget / epoch + 1e-9)
    tracker = Tracker(bench, budget)
    tracker.first += draw(bench, rng, min(n, fitting, bench.n))
    scores = tracker.run(tracker.first, 1.0, epoch, level=0)
    for member in best_first(tracker.first, scores):
        if not tracker.affords(1.0 - epoch):
            break
        tracker.run_in_full([member], level=1, paid=epoch)
    return tracker.trace()


def run_kgtuner(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """Search a fifth of the graph with a model, then train the best in full, in the manner of KGTuner (ACL 2022).

    As published, 50 trials and ten full runs cost about 20; a smaller budget is split in the same way, with two full
    runs if possible. TPE replaces its random forest, the core order its walk, and the pool its smaller space.
    """
    in_full = max(2, math.floor(budget / 2)) if budget >= 2 + 2 * KGTUNER_GRAPH else 0
    n = min(bench.n, math.floor((budget - in_full) / KGTUNER_GRAPH + 1e-9))
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    scores = _propose_and_run(
        tracker, order, first=max(2, n // 5), proceed=lambda: len(tracker.first) < n,
        run=lambda member: float(tracker.run([member], KGTUNER_GRAPH, 1.0, level=0)[0]),
    )  # fmt: skip
    for member in best_first(tracker.first, np.array(scores))[:in_full]:
        tracker.run_in_full([member], level=1)
    return tracker.trace()


def run_autone(
    bench: Recorded, rng: np.random.Generator, budget: float, *, subgraphs: int = 5, each: int = 5, part: float = 1 / 3
) -> Trace:
    """Learn on small subgraphs which full runs are promising, in the manner of AutoNE (KDD 2019).

    A Gaussian process sees a configuration and a signature of its graph (sizes instead of AutoNE's heat trace). After
    `each` configurations on each of some subgraphs, as far as `part` of the budget lasts, the member with the best
    upper confidence bound on the full graph is run in full, again and again.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    order, tracker, signs = draw(bench, rng, bench.n), Tracker(bench, budget), signatures(bench)
    features, seen = points_of(bench).features, []  # seen: (features and signature, score)
    small = [i for i, g in enumerate(bench.fractions) if g <= AUTONE_LARGEST] or [0]
    for _ in range(subgraphs):
        at = small[int(rng.integers(len(small)))]
        g = float(bench.fractions[at])
        for _ in range(each):
            if len(tracker.first) == len(order) or tracker.cost + g > part * budget + _SLACK:
                break
            member = order[len(tracker.first)]
            tracker.first.append(member)
            score = tracker.run([member], g, 1.0, level=0)[0]
            seen.append((np.append(features[member], signs[at]), np.nan_to_num(score)))
    free = np.ones(bench.n, bool)
    kernel = Matern(nu=2.5, length_scale_bounds=(0.1, 10.0))
    process = GaussianProcessRegressor(kernel, alpha=1e-2, normalize_y=True)
    on_full = np.concatenate([features, np.tile(signs[-1], (bench.n, 1))], axis=1)
    while tracker.affords(1.0) and free.any():
        if seen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is fine
                process.fit(*(np.array(column) for column in zip(*seen)))
        mean, deviation = process.predict(on_full, return_std=True)
        member = int(np.argmax(np.where(free, mean + AUTONE_KAPPA * deviation, -np.inf)))
        free[member] = False
        if member not in tracker.first:
            tracker.first.append(member)
        seen.append((on_full[member], np.nan_to_num(tracker.run_in_full([member], level=1)[0])))
    return tracker.trace()


def signatures(bench: Recorded) -> Scores:
    """Return (G, 3) logarithms of entities, triples and triples per entity of the graphs, each from 0 to 1."""
    entities, triples = (np.log(np.maximum(1, sizes)) for sizes in (bench.table.entities, bench.table.triples))
    raw = np.stack([entities, triples, triples - entities], axis=1)
    spread = raw.max(axis=0) - raw.min(axis=0)
    return (raw - raw.min(axis=0)) / np.where(spread > 0, spread, 1.0)


def run_rungs(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    n: Count = 64,
    eta: Eta = 4,
    sizes: tuple[Count, ...] | None = None,
    shares: tuple[Share, ...] | None = None,
    lean: Share | tuple[Share, ...] = 0.5,
    guard_rails: bool = True,
    entities: Count | None = None,
    valid: Count = MIN_VALID,
    whole_above: Share = MAX_SUBGRAPH,
    carry_over: bool = True,
    continues: bool = False,
    trend: Share | tuple[Share, ...] = SearchSettings.model_fields["trend"].default,
    isolated: bool = True,
    ties: Share = 0.0,
    most: Annotated[float, Field(ge=1)] = 2.0,
) -> Trace:
    """Run rounds that the product does not have, to try them out; with its defaults it decides as the search does.

    sizes: of the rounds, instead of n and eta. shares: of the budget (default: equal).
    lean: the exponent in g = f^lean, for all rounds or one each: 0 is epochs only, 1 graph only.
    guard_rails: at least so many entities and validation triples and one epoch, as in a search; the whole graph if
    that takes more of it than whole_above.
    continues: survivors of a round on the whole graph continue from their weights and pay for the increment only.
    trend: weight of the rise from half of the epochs to all of them, for all rounds or one each.
    isolated: the last round holds out triples as a search does by default.
    ties: those within so many standard errors of the last survivor advance too, up to `most` times as many.
    """
    least = smallest_graph(bench, entities, valid, whole_above) if guard_rails else 0.0
    wanted = list(sizes) if sizes is not None else _fitting_sizes(bench, min(n, bench.n), eta, budget, least)
    rounds = len(wanted)
    if wanted[0] > bench.n:
        raise ConfigError(f"sizes={tuple(wanted)} starts with more than the {bench.n} configurations of the table.")
    if shares is not None and (len(shares) != rounds or sum(shares) > 1 + 1e-9 or min(shares) <= 0):
        raise ConfigError(f"shares={tuple(shares)}: give {rounds} shares above 0 that sum to at most 1.")
    parts = [budget / rounds] * rounds if shares is None else [budget * share for share in shares]
    leans, trends = (_per_round(name, given, rounds) for name, given in (("lean", lean), ("trend", trend)))

    entrants = draw(bench, rng, wanted[0])
    tracker = Tracker(bench, budget, first=list(entrants))
    unspent, trained = 0.0, 0.0  # budget; epochs that survivors continue from
    for i, part in enumerate(parts):
        unspent = part + (unspent if carry_over else 0.0)
        g, e = split(bench, min(1.0, unspent / len(entrants) + trained), lean=leans[i], least=least)
        if g < 1 and trained:  # on a smaller graph, survivors start again
            trained = 0.0
            g, e = split(bench, min(1.0, unspent / len(entrants)), lean=leans[i], least=least)
        before = tracker.cost
        judge = bench.last_judge(g) if isolated and i + 1 == rounds else bench
        scores, seen = judge.scores(g, e) + trends[i] * judge.rises(g, e), judge.part_seen(g, e)
        scores = tracker.bill(entrants, scores, g, e, level=i, paid=trained, seen=seen)
        unspent -= tracker.cost - before
        trained = e if continues and g == 1 else 0.0
        entrants = _promoted(bench, entrants, scores, g, wanted[i + 1] if i + 1 < rounds else 1, ties, most)
        if not entrants:
            break
    return tracker.trace()


def split(bench: Recorded, fidelity: float, *, lean: float = 0.5, least: float = 0.0) -> tuple[float, float]:
    """Return (g, e) of a fidelity, as `search.schedule` splits it for lean = 1/2.

    least: the smallest graph fraction that the guard rails allow; 0 for no guard rails.
    """
    g = max(fidelity**lean, least)
    if least and bench.max_epochs >= 1:
        g = min(g, fidelity * bench.max_epochs)
    g = 1.0 if g >= 1 or bench.shape((g,)).whole else g
    return g, min(1.0, fidelity / g)


def smallest_graph(
    bench: Recorded, entities: int | None = None, valid: int = MIN_VALID, whole_above: float = MAX_SUBGRAPH
) -> float:
    """Return the smallest graph fraction that the guard rails of a search, or others, allow."""
    return least_fraction(bench, entities or min_entities(bench), valid, whole_above)


def _fitting_sizes(bench: Recorded, n: int, eta: int, budget: float, least: float) -> list[int]:
    """Return the sizes of the rounds; fewer trials if one epoch on the smallest graph would cost more."""
    for fewer in range(n, 1, -1) if bench.max_epochs >= 1 else ():
        sizes = round_sizes(fewer, eta)
        if min(1.0, budget / len(sizes) / fewer) >= min(1.0, least / bench.max_epochs):
            return sizes
    return round_sizes(n, eta)


def _per_round(name: str, given: float | Sequence[float], n_rounds: int) -> list[float]:
    if isinstance(given, int | float):
        return [float(given)] * n_rounds
    if len(given) < n_rounds:
        raise ConfigError(f"{name}={tuple(given)} has {len(given)} values for {n_rounds} rounds: give one each.")
    return [float(v) for v in given]


def _promoted(
    bench: Recorded, members: list[int], scores: Scores, g: float, places: int, ties: float, most: float
) -> list[int]:
    """Return the best, and those that are not clearly worse than the last of them."""
    order = best_first(members, scores)
    if not ties or places >= len(order):
        return order[:places]
    found = dict(zip(members, scores.tolist()))
    error = _DEVIATION / math.sqrt(2 * max(1, bench.shape((g,)).n_valid))
    near = sum(found[m] >= found[order[places - 1]] - ties * error for m in order)
    return order[: min(near, math.floor(most * places))]


def _propose_and_run(
    tracker: Tracker, order: Sequence[int], *, first: int, proceed: Callable[[], bool],
    run: Callable[[int], float],
) -> list[float]:  # fmt: skip
    """Run members one by one, the `first` in random order, then those that TPE proposes; return their scores."""
    free, proposer = np.ones(len(order), bool), Proposer(points_of(tracker.bench))
    scores: list[float] = []
    while proceed() and free.any():
        member = order[len(scores)] if len(scores) < first else proposer.propose(free)
        free[member] = False
        tracker.first.append(member)
        scores.append(run(member))
        proposer.see(member, scores[-1])
    return scores


Run = Callable[..., Trace]
RUNS: dict[str, Run] = {
    "grash": run_grash,
    "rungs": run_rungs,
    "random": run_random,
    "one-epoch": run_one_epoch,
    "hyperband": run_hyperband,
    "tpe": run_tpe,
    "tpe-rounds": run_tpe_rounds,
    "kgtuner": run_kgtuner,
    "autone": run_autone,
}


@dataclass(frozen=True)
class Method:
    """A search method with its settings."""

    name: str
    run: str | Run  # one of RUNS, or a function of the same form
    settings: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None  # its own, if it is not the common one

    def __call__(self, bench: Recorded, seed: int, budget: float) -> Trace:
        """Run one search, which depends only on the seed."""
        run = RUNS.get(self.run) if isinstance(self.run, str) else self.run
        if run is None:
            raise UnknownName("method", str(self.run), hint=f"Methods: {', '.join(RUNS)}.")
        return run(bench, np.random.default_rng(seed), self.budget or budget, **self.settings)


METHODS: tuple[Method, ...] = (
    Method("GraSH, default", "grash"),
    Method("paper's rules, core order (combined)", "grash", {"preset": "paper"}),
    Method("paper's rules, core order (epoch)", "grash", {"preset": "paper", "variant": "epoch"}),
    Method("paper's rules, core order (graph)", "grash", {"preset": "paper", "variant": "graph"}),
    Method("random search", "random"),
    Method("one epoch, then the best", "one-epoch"),
    Method("Hyperband", "hyperband"),
    Method("TPE", "tpe"),
    Method("TPE with our rounds", "tpe-rounds"),
    Method("TPE with epochs (BOHB)", "tpe-rounds", {"variant": "epoch"}),
    Method("KGTuner-style", "kgtuner"),
    Method("KGTuner-style, as published", "kgtuner", budget=20.0),
    Method("AutoNE-style", "autone"),
)


_SEARCHES = ("grash", "tpe-rounds")  # these take the settings of a search


def read_methods(path: Path) -> tuple[Method, ...]:
    """Return the default, and the methods that a YAML file lists: name, run (default: grash), settings."""
    content = read_yaml(path)
    if not isinstance(content, list):
        raise ConfigError(f"{path} should be a list of methods, e.g. - {{name: more survivors, eta: 3}}.")
    return (Method("default", "grash"), *(_method(entry, path) for entry in content))


def _method(entry: Any, path: Path) -> Method:
    run = str(entry.get("run", "grash")) if isinstance(entry, Mapping) else ""
    if run not in RUNS or "name" not in entry:
        raise ConfigError(f"{path}: {entry!r} is not a method: give a name, and as run one of {', '.join(RUNS)}.")
    given = {name: value for name, value in entry.items() if name not in ("name", "run")}
    parameters = inspect.signature(RUNS[run], eval_str=True).parameters.values()
    kinds: dict[str, Any] = {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
    kinds["budget"] = (Annotated[float, Field(gt=0)] | None, None)
    try:
        values = dict(create_model(run, __base__=SearchSettings if run in _SEARCHES else Settings, **kinds)(**given))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    settings = {name: values[name] for name in given if name != "budget"}
    return Method(str(entry["name"]), run, settings, values["budget"])


SWEEP = read_methods(Path(__file__).with_name("sweep.yaml"))
