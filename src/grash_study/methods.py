"""Methods that choose from a pool, one file each, all of the form `run(bench, rng, budget, **settings) -> Trace`.

Every method begins with the same random order of the pool for the same seed, so that they are compared in pairs. The
final training of the pick is outside the budget for all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grash.errors import ConfigError, UnknownName
from grash.search.ledger import SearchState
from grash.search.schedule import MAX_SUBGRAPH, MIN_VALID, least_fraction, min_entities, round_sizes
from grash.search.settings import SearchSettings
from grash_study.draws import Process, draw, next_member
from grash_study.recorded import Recorded, Scores
from grash_study.table_search import entering, first_round, round_scores, search

# = What a method did, in the unit all share: its incumbent after every trial, against what had been billed by then.

_SLACK = 1e-9  # of a full run: what adding floats may cost


@dataclass(frozen=True)
class Trace:
    """points: (cost so far in full runs, incumbent) whenever that one changed; pick: what it would train in full, None
    if nothing has a score; first: the members that it chose among. Members are places in `Recorded`'s arrays."""

    points: tuple[tuple[float, int], ...]
    pick: int | None
    first: tuple[int, ...]
    cost: float
    levels: tuple[tuple[int, ...], ...] = ()  # members that were trained at each level, the cheapest first

    def test_mrr(self, bench: Recorded) -> float:
        """Of the pick, trained in full; 0 where there is none."""
        return 0.0 if self.pick is None else float(bench.truth[self.pick])


@dataclass
class Tracker:
    """Bills trials and remembers incumbents. Trials of a later level outrank those before it, whatever their score:
    scores of different graphs are not compared."""

    bench: Recorded
    budget: float
    cost: float = 0.0
    points: list[tuple[float, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    levels: dict[int, list[int]] = field(default_factory=dict)
    _level: int = -1
    _best: tuple[float, int] | None = None

    def affords(self, cost: float) -> bool:
        return self.cost + cost <= self.budget + _SLACK

    def run(self, members: Sequence[int], g: float, e: float, *, level: int = 0) -> Scores:
        """Trials of members on a graph fraction for an epoch fraction, one after the other: (m,) scores, NaN if
        diverged."""
        return self.bill(members, self.bench.scores(g, e), g, e, level=level)

    def run_in_full(self, members: Sequence[int], *, level: int = 0, paid: float = 0.0) -> Scores:
        """Full runs that are validated all along: their best validations count."""
        return self.bill(members, self.bench.full_scores, 1.0, 1.0, level=level, paid=paid)

    def bill(
        self, members: Sequence[int], scores: Scores, g: float, e: float, *, level: int = 0, paid: float = 0.0,
        seen: Scores | None = None,
    ) -> Scores:  # fmt: skip
        """(m,) of all members' scores (n,), noted and paid for. paid: the part of their epochs that they had before and
        go on from, not billed again. seen: the part that they come to, if not as the table has it."""
        seen = self.bench.part_seen(g, e) if seen is None else seen
        self.levels.setdefault(level, []).extend(members)
        for i in members:
            self.cost += g * max(0.0, float(seen[i]) * e - paid)
            self._note(float(scores[i]), i, level)
        return scores[list(members)]

    def trace(self) -> Trace:
        pick = None if self._best is None else self._best[1]
        levels = tuple(tuple(self.levels[level]) for level in sorted(self.levels))
        return Trace(tuple(self.points), pick, tuple(self.first), self.cost, levels)

    def _note(self, score: float, member: int, level: int) -> None:
        if math.isnan(score):
            return
        if self._best is None or level > self._level or (level == self._level and score > self._best[0]):
            self._best, self._level = (score, member), level
            self.points.append((self.cost, member))


def best_first(members: Sequence[int], scores: Scores) -> list[int]:
    """Members with a score, the best first; ties keep their order."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return [members[i] for i in order if not math.isnan(scores[i])]


# = GraSH as it is: the decisions of `search.halving` on recorded results, under any preset and settings.
# =
# = `preset="paper"` has no guard_rails and carries nothing; that it cuts whole cores (ladder) and how it scales negatives are no
# = part of a table, whose graphs are cut by the chain.


def run(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    preset: str = "default",
    how: str = "random",
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
    **settings: Any,
) -> Trace:
    """One search. how, first, batch, uniform: where its configurations come from (`draws.draw`)."""
    made = bench.settings(preset, budget, tuple(settings.items()))
    n = entering(bench, made)
    scores = round_scores(bench, first_round(bench, made), made) if how == "waves" else None
    numbers = draw(bench, rng, n, how=how, scores=scores, first=first, batch=batch, uniform=uniform)
    return _trace(search(bench, numbers, made), numbers)


def _trace(state: SearchState, numbers: list[int]) -> Trace:
    """The incumbent after every trial: the best so far of the highest round that has a score."""
    points: list[tuple[float, int]] = []
    cost = 0.0
    for past in state.rounds:
        best = -1.0
        for i, result in past.results.items():
            cost += result.cost
            if result.mrr is not None and (judged := result.mrr + past.plan.trend * result.rise) > best:
                best = judged
                points.append((cost, numbers[i]))
    pick = None if state.winner is None else numbers[state.winner]
    levels = tuple(tuple(numbers[i] for i in past.results) for past in state.rounds)
    return Trace(tuple(points), pick, tuple(numbers), cost, levels)


# = TPE with fidelities, in the manner of BOHB: the rounds of a search, whose first-round trials a model proposes.
# =
# = Members enter the first round one by one; once there are two more than parameters, two in three are proposed from the
# = scores that this round has so far, the others at random. The rounds after it are those of GraSH.


def run_tpe_rounds(
    bench: Recorded, rng: np.random.Generator, budget: float, *, uniform: float = 1 / 3, **settings: Any
) -> Trace:
    """settings: of the search whose rounds these are (`variant="epoch"` for BOHB's own fidelity)."""
    n = entering(bench, bench.settings(settings.get("preset", "default"), budget, _changes(settings)))
    enough = len(bench.points.space.searched) + 2
    return run(bench, rng, budget, how="waves", first=min(1.0, enough / n), batch=1, uniform=uniform, **settings)


def _changes(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, v) for k, v in settings.items() if k != "preset")


# = Hyperband over our rounds: several searches of fewer rounds each, which all end in the same last round.
# =
# = Bracket k begins with round k of the search and goes through the rest of them, at their fidelities, with a part
# = 2/(s + 1) of their trials (s rounds): together they cost the budget. All finalists are compared on one graph, with the
# = held-out triples of a search's last round.


def run_hyperband(
    bench: Recorded, rng: np.random.Generator, budget: float, *, n: int = 64, eta: int = 4, guard_rails: bool = True
) -> Trace:
    """The brackets one after the other, the one with most configurations first."""
    sizes = round_sizes(min(n, bench.n), eta)
    rounds = len(sizes)
    fidelities = [min(1.0, budget / rounds / size) for size in sizes]
    counts = [max(1, int(size * 2 / (rounds + 1) + 1e-9)) for size in sizes]
    order = draw(bench, rng, bench.n)
    tracker, at = Tracker(bench, budget), 0
    for bracket in range(rounds):
        entrants = order[at : at + counts[bracket]]
        at += len(entrants)
        tracker.first += entrants
        for i in range(bracket, rounds):
            g, e = split(bench, fidelities[i], guard_rails=guard_rails)
            entrants = entrants[: counts[i]]
            if not entrants or not tracker.affords(g * e * len(entrants)):
                break
            judge = bench.last_judge(g) if i == rounds - 1 else bench
            seen = judge.part_seen(g, e)
            entrants = best_first(entrants, tracker.bill(entrants, judge.scores(g, e), g, e, level=i, seen=seen))
    return tracker.trace()


# = A search in the manner of AutoNE (KDD 2019): small subgraphs teach a Gaussian process, which then asks for full runs.
# =
# = Five configurations on each of five subgraphs, as far as a third of the budget goes; the process sees the configuration
# = and a signature of its graph, and the full graph is one more signature. Then the member with the best upper bound on the
# = full graph is run in full, again and again. AutoNE's signature is a heat trace of the graph; a table knows its sizes.

KAPPA = 2.576  # standard deviations in the upper bound, as published
LARGEST = 1 / 8  # of the graph: what still counts as a small subgraph


def run_autone(
    bench: Recorded, rng: np.random.Generator, budget: float, *, subgraphs: int = 5, each: int = 5, part: float = 1 / 3
) -> Trace:
    """part: the share of the budget that subgraphs may take."""
    order = draw(bench, rng, bench.n)
    tracker, process = Tracker(bench, budget), Process(bench.points.distances, signatures(bench))
    small = [i for i, g in enumerate(bench.fractions) if g <= LARGEST] or [0]
    for _ in range(subgraphs):
        at = small[int(rng.integers(len(small)))]
        g = float(bench.fractions[at])
        for _ in range(each):
            if len(tracker.first) == len(order) or tracker.cost + g > part * budget + 1e-9:
                break
            member = order[len(tracker.first)]
            tracker.first.append(member)
            process.see(member, at, float(np.nan_to_num(tracker.run([member], g, 1.0, level=0)[0])))
    full, free = len(bench.fractions) - 1, np.ones(bench.n, bool)
    while tracker.affords(1.0) and free.any():
        mean, deviation = process.guess(full)
        member = int(np.argmax(np.where(free, mean + KAPPA * deviation, -np.inf)))
        free[member] = False
        if member not in tracker.first:
            tracker.first.append(member)
        process.see(member, full, float(np.nan_to_num(tracker.run_in_full([member], level=1)[0])))
    return tracker.trace()


def signatures(bench: Recorded) -> np.ndarray:
    """(G, 3) of the graphs: logarithms of entities, triples and triples per entity, each from 0 to 1."""
    entities, triples = (np.log(np.maximum(1, bench.sizes[name])) for name in ("entities", "triples"))
    raw = np.stack([entities, triples, triples - entities], axis=1)
    spread = raw.max(axis=0) - raw.min(axis=0)
    return (raw - raw.min(axis=0)) / np.where(spread > 0, spread, 1.0)


# = Two stages in the manner of KGTuner (ACL 2022): a model-based search on a fifth of the graph, then its best in full.
# =
# = As published: 50 trials for all epochs on the subgraph and ten full runs, which cost about 20; a smaller budget is cut
# = down alike. Its classifier of the best quarter (BORE, random forest) is here the ratio of densities that it estimates;
# = its subgraph by random walks is a fifth of the graph along the table's chain, and its shrunken space the pool's.

GRAPH = 0.2
GOOD = 0.25  # of the trials: what its classifier learns to tell from the rest


def run_kgtuner(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """Half of the budget each, with at least two full runs where it pays for them."""
    in_full = max(2, math.floor(budget / 2)) if budget >= 2 + 2 * GRAPH else 0
    n = min(bench.n, math.floor((budget - in_full) / GRAPH + 1e-9))
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    first, free = max(2, n // 5), np.ones(bench.n, bool)
    scores: list[float] = []
    for _ in range(n):
        seen = tracker.first
        random = len(seen) < first
        member = order[len(seen)] if random else next_member(bench.points, seen, scores, free, top=GOOD)
        free[member] = False
        tracker.first.append(member)
        scores.append(float(tracker.run([member], GRAPH, 1.0, level=0)[0]))
    for member in best_first(tracker.first, np.array(scores))[:in_full]:
        tracker.run_in_full([member], level=1)
    return tracker.trace()


# = One epoch, then the best k in full (Egele et al. 2023, arXiv 2307.15422): all enter the full graph for one epoch.
# =
# = Those that go on continue from their first epoch, and only the rest is billed.


def run_one_epoch(bench: Recorded, rng: np.random.Generator, budget: float, *, n: int = 64, least: int = 2) -> Trace:
    """n configurations, or as many as leave the budget for `least` full runs; then as many full runs as it pays for."""
    epoch = min(1.0, 1.0 / bench.max_epochs)
    fitting = math.floor((budget - least * (1.0 - epoch)) / epoch + 1e-9)
    fitting = (
        fitting if fitting >= 2 else math.floor(budget / epoch + 1e-9)
    )  # too little for full runs: the best of one
    tracker = Tracker(bench, budget)
    members = draw(bench, rng, min(n, fitting, bench.n))
    tracker.first += members
    scores = tracker.run(members, 1.0, epoch, level=0)
    for member in best_first(members, scores):
        if not tracker.affords(1.0 - epoch):
            break
        tracker.run_in_full([member], level=1, paid=epoch)
    return tracker.trace()


# = Random search with full training: as many full runs as the budget pays for, the best validation wins.


def run_random_search(bench: Recorded, rng: np.random.Generator, budget: float) -> Trace:
    """A run that diverges is billed for what it saw, and another one takes the rest."""
    tracker = Tracker(bench, budget)
    for member in draw(bench, rng, bench.n):
        if not tracker.affords(1.0):
            break
        tracker.first.append(member)
        tracker.run_in_full([member])
    return tracker.trace()


# = TPE without fidelities: full runs one after the other, each the most promising member given those before it.
# =
# = With the three runs of B = 3 there is little to learn from; it is here to be compared at larger budgets too.


def run_tpe(bench: Recorded, rng: np.random.Generator, budget: float, *, first: int = 2, top: float = 0.2) -> Trace:
    """first: runs at random before there is a model."""
    tracker, order = Tracker(bench, budget), draw(bench, rng, bench.n)
    free = np.ones(bench.n, bool)
    scores: list[float] = []
    while tracker.affords(1.0) and free.any():
        seen = tracker.first
        member = order[len(seen)] if len(seen) < first else next_member(bench.points, seen, scores, free, top=top)
        free[member] = False
        tracker.first.append(member)
        scores.append(float(tracker.run_in_full([member])[0]))
    return tracker.trace()


# = Halving as it could be: the laboratory for rounds that the search does not know yet.
# =
# = With its defaults it decides as GraSH does. What can be changed: the sizes and shares of the rounds, how a fidelity is
# = split between graph and epochs (`lean`), how large the guard_rails want a graph, and promotion of ties.

_DEVIATION = 0.35  # of a reciprocal rank, about; two ranks per validation triple


def run_rungs(
    bench: Recorded,
    rng: np.random.Generator,
    budget: float,
    *,
    n: int = 64,
    eta: int = 4,
    sizes: Sequence[int] | None = None,
    shares: Sequence[float] | None = None,
    lean: float | Sequence[float] = 0.5,
    guard_rails: bool = True,
    entities: int | None = None,
    valid: int = MIN_VALID,
    whole_above: float = MAX_SUBGRAPH,
    carry: bool = True,
    continues: bool = False,
    trend: float | Sequence[float] = SearchSettings.model_fields["trend"].default,
    isolated: bool = True,
    ties: float = 0.0,
    most: float = 2.0,
    how: str = "random",
    first: float = 0.5,
    batch: int | None = None,
    uniform: float = 0.0,
) -> Trace:
    """sizes of the rounds instead of n and eta; shares of the budget (equal ones by default).

    lean: the exponent of the graph fraction, g = f^lean, for all rounds or one each: 0 is epochs only, 1 graph only.
    guard_rails: at least so many entities (as the search has it by default) and validation triples, and one epoch; the whole
    graph where that takes more of it than whole_above.
    continues: survivors of a round on the whole graph go on from their weights, if the next is on it too: what they
    have trained is not paid again, and buys more epochs.
    trend: what a rise from half of the epochs to all of them adds to a score, in all rounds or one each.
    isolated: the last round holds out as that of a search does by default, where the table has it.
    ties: those that lie within so many standard errors of the last place go on too, up to `most` times the places.
    how, first, batch, uniform: where configurations come from (`draws.draw`).
    """
    rules = _Rules(bench, guard_rails, entities, valid, whole_above)
    wanted = list(sizes) if sizes is not None else rules.fitting(min(n, bench.n), eta, budget)
    parts = _parts(budget, shares, len(wanted))
    leans, trends = (_each(name, given, len(wanted)) for name, given in (("lean", lean), ("trend", trend)))

    def judge(i: int, g: float) -> Recorded:
        return bench.last_judge(g) if isolated and i + 1 == len(wanted) else bench

    def judged(i: int, g: float, e: float) -> Scores:
        return judge(i, g).scores(g, e) + trends[i] * judge(i, g).rises(g, e)

    scores = judged(0, *rules.split(min(1.0, parts[0] / wanted[0]), leans[0])) if how == "waves" else None
    entrants = draw(bench, rng, wanted[0], how=how, scores=scores, first=first, batch=batch, uniform=uniform)
    tracker = Tracker(bench, budget, first=list(entrants))
    purse, had = 0.0, 0.0  # what was not spent; epochs that survivors go on from
    for i, part in enumerate(parts):
        purse = part + (purse if carry else 0.0)
        g, e = rules.split(min(1.0, purse / len(entrants) + had), leans[i])
        if g < 1 and had:  # a smaller graph begins anew
            had = 0.0
            g, e = rules.split(min(1.0, purse / len(entrants)), leans[i])
        before = tracker.cost
        seen = judge(i, g).part_seen(g, e)
        scores = tracker.bill(entrants, judged(i, g, e), g, e, level=i, paid=had, seen=seen)
        purse -= tracker.cost - before
        had = e if continues and g == 1 else 0.0
        entrants = _promoted(bench, entrants, scores, g, wanted[i + 1] if i + 1 < len(wanted) else 1, ties, most)
        if not entrants:
            break
    return tracker.trace()


@dataclass(frozen=True, eq=False)
class _Rules:
    """The guard guard_rails, if any: how a fidelity is split, and how many trials the first round can have."""

    bench: Recorded
    guard_rails: bool
    entities: int | None
    valid: int
    whole_above: float

    def split(self, fidelity: float, lean: float) -> tuple[float, float]:
        return split(
            self.bench, fidelity, lean=lean, guard_rails=self.guard_rails, entities=self.entities, valid=self.valid,
            whole_above=self.whole_above,
        )  # fmt: skip

    def fitting(self, n: int, eta: int, budget: float) -> list[int]:
        """Sizes of the rounds; fewer trials where one epoch on the smallest graph would cost more, as in the search."""
        wanted = self.entities or min_entities(self.bench)
        least = least_fraction(self.bench, wanted, self.valid, self.whole_above) / self.bench.max_epochs
        if not self.guard_rails or self.bench.max_epochs < 1:
            return round_sizes(n, eta)
        for fewer in range(n, 1, -1):
            sizes = round_sizes(fewer, eta)
            if min(1.0, budget / len(sizes) / fewer) >= min(1.0, least):
                return sizes
        return round_sizes(n, eta)


def split(
    bench: Recorded,
    fidelity: float,
    *,
    lean: float = 0.5,
    guard_rails: bool = True,
    entities: int | None = None,
    valid: int = MIN_VALID,
    whole_above: float = MAX_SUBGRAPH,
) -> tuple[float, float]:
    """(g, e) of a fidelity, as `search.schedule` splits it for lean = 1/2."""
    g = fidelity**lean
    if guard_rails:
        g = max(g, least_fraction(bench, entities or min_entities(bench), valid, whole_above))
        g = min(g, fidelity * bench.max_epochs) if bench.max_epochs >= 1 else g
    g = min(1.0, g)
    if bench.shape((g,)).whole:
        g = 1.0
    return g, min(1.0, fidelity / g)


def _each(name: str, given: float | Sequence[float], n_rounds: int) -> list[float]:
    """What was given for all rounds or one each, round by round."""
    if isinstance(given, int | float):
        return [float(given)] * n_rounds
    if len(given) < n_rounds:
        raise ConfigError(f"{name}={tuple(given)} has {len(given)} values for {n_rounds} rounds: give one each.")
    return [float(v) for v in given]


def _parts(budget: float, shares: Sequence[float] | None, n_rounds: int) -> list[float]:
    if shares is None:
        return [budget / n_rounds] * n_rounds
    if len(shares) != n_rounds or sum(shares) > 1 + 1e-9 or min(shares) <= 0:
        raise ConfigError(f"shares={tuple(shares)}: give {n_rounds} shares above 0 that sum to at most 1.")
    return [budget * share for share in shares]


def _promoted(
    bench: Recorded, members: list[int], scores: Scores, g: float, places: int, ties: float, most: float
) -> list[int]:
    """The best, and with them those that cannot be told from the last of them."""
    order = best_first(members, scores)
    if not ties or places >= len(order):
        return order[:places]
    found = dict(zip(members, scores.tolist()))
    error = _DEVIATION / math.sqrt(2 * max(1, bench.shape((g,)).n_valid))
    near = sum(found[m] >= found[order[places - 1]] - ties * error for m in order)
    return order[: min(near, math.floor(most * places))]


Run = Callable[..., Trace]
RUNS: dict[str, Run] = {
    "grash": run,
    "rungs": run_rungs,
    "random": run_random_search,
    "one-epoch": run_one_epoch,
    "hyperband": run_hyperband,
    "tpe": run_tpe,
    "tpe-rounds": run_tpe_rounds,
    "kgtuner": run_kgtuner,
    "autone": run_autone,
}


@dataclass(frozen=True)
class Method:
    """A way to search, by name: which of RUNS, or a function of the same form, with which settings; budget: its own,
    where it is not the common one."""

    name: str
    run: str | Run
    settings: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None

    def __call__(self, bench: Recorded, seed: int, budget: float) -> Trace:
        """One search; its result depends on nothing but the seed."""
        spent = budget if self.budget is None else self.budget
        return self._function(bench, np.random.default_rng(seed), spent, **self.settings)

    @property
    def _function(self) -> Run:
        if not isinstance(self.run, str):
            return self.run
        if self.run not in RUNS:
            raise UnknownName("method", self.run, difflib.get_close_matches(self.run, RUNS) or tuple(RUNS))
        return RUNS[self.run]


METHODS: tuple[Method, ...] = (
    Method("GraSH, default", "grash"),
    Method("paper's rules, chain (combined)", "grash", {"preset": "paper"}),
    Method("paper's rules, chain (epoch)", "grash", {"preset": "paper", "variant": "epoch"}),
    Method("paper's rules, chain (graph)", "grash", {"preset": "paper", "variant": "graph"}),
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
