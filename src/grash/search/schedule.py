"""The schedule of a search: how many trials a round has, what each may cost, and the graph and epochs this pays for.

Pure functions: state, settings and sizes of subgraphs in, a `Round` out (paper, Algorithm 1, lines 1-7;
docs/decisions/0014 explains the differences). Budgets are exact fractions, so the total cost never exceeds the budget.

Extensions (`--extend`) give a search whose rounds are all open more trials or a larger budget. More trials: new
configurations enter round 1, and every round takes as many as a search of that size would. A larger budget: the rounds
after the first take more survivors, each round an equal part of what is added. Fidelities stay and no trial runs twice.
New trials can displace survivors of before, so the budget grows by the most that this can cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

from grash.errors import ConfigError
from grash.search.ledger import CLOSEST, TO_THE_END, SearchState, keeps_finalists
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Round
from grash.training.config import TrainConfig

MIN_ENTITY_SHARE = 0.01  # guard rails: a subgraph has at least this share and this number of entities
MIN_ENTITIES = 2000
MIN_VALID = 1000  # and this number of validation triples
ISOLATED_FROM = 0.25  # smaller graphs predict full-training performance better with random triples (decision 0039)
ISOLATED_NOTE = "validation triples are isolated pairs, like the dataset's valid split: no other triple links them"
MAX_SUBGRAPH = 0.5  # a subgraph that must be larger saves little, and the whole graph has the better validation
_PARTS = 64  # steps in which the budget of an extension is tried


@dataclass(frozen=True)
class Shape:
    """Sizes of a subgraph."""

    n_entities: int
    n_relations: int
    n_train: int
    n_valid: int
    k: int | None = None
    whole: bool = False  # the full graph with the dataset's own validation triples
    fell_back: bool = False  # no core was small enough, so the innermost one was cut further


class Graphs(Protocol):
    """The subgraphs that a schedule chooses from."""

    n_entities: int
    n_train: int

    @property
    def valid_pairs_isolated(self) -> bool:
        """Whether the last round should hold out isolated pairs, because the valid split has only these."""

    def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        """Return the sizes of the subgraph with fractions[-1] of the triples."""

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """Return the smallest fraction whose subgraph has this many entities and validation triples."""


def round_sizes(n_trials: int, eta: int) -> list[int]:
    """Return the number of trials of each round: n, ⌈n/η⌉, … until 1 would be left."""
    sizes = []
    while n_trials > 1:
        sizes.append(n_trials)
        n_trials = -(-n_trials // eta)
    return sizes


def planned_sizes(n_trials: int, settings: SearchSettings, graphs: Graphs) -> list[int]:
    """Return the number of trials of each round, with the comparisons of finalists, if there are any, at the end.

    Finalists are compared if the dataset has enough validation triples: twice, then the closest are trained to the end.
    A last round that has the full graph is such a comparison itself, so that only the training to the end is left. All
    but the first comparison continue trainings, so they need their states.
    """
    sizes = round_sizes(n_trials, settings.eta)
    if settings.finalists < 2 or not sizes or settings.variant == "epoch" or settings.warm_start != "off":
        return sizes
    fidelity = fidelity_of(settings.full_budget / len(sizes), [1.0] * sizes[-1])
    fraction, _ = _graph_fraction(fidelity, settings, graphs)
    if graphs.shape((1.0,)).n_valid < MIN_VALID or fidelity == 1:
        return sizes
    comparisons = _comparison_sizes(sizes[-1], settings, whole=graphs.shape((fraction,)).whole)
    saved = keeps_finalists(graphs.n_entities, settings.dim)
    return sizes + [n for i, n in enumerate(comparisons) if saved or i == 0 and len(comparisons) > 1]


def _comparison_sizes(n_last: int, settings: SearchSettings, *, whole: bool) -> list[int]:
    """Return the number of finalists in each comparison. whole: the last round has the full graph."""
    count, protected = min(settings.finalists, n_last), len(settings.models) + 1  # the best of each, and the leader
    sizes = [count, min(max(CLOSEST, protected), count)]
    if settings.variant != "graph":  # there, the second comparison has all epochs
        sizes.append(min(max(TO_THE_END, protected), count))
    return sizes[-1:] if whole else sizes


def fitting_trials(settings: SearchSettings, graphs: Graphs) -> int:
    """Return the number of trials of the first round: `n_trials`, or fewer if the guard rails require it.

    Only variant=combined lowers it, and never below the number of configurations that the user gave.
    """
    if not settings.guard_rails or settings.variant != "combined" or settings.max_epochs < 1:
        return settings.n_trials
    smallest = Fraction(least_fraction(graphs, min_entities(graphs), MIN_VALID))
    one_epoch = min(Fraction(1), smallest / settings.full_epochs)  # on the smallest graph that they allow

    def too_many(n: int) -> bool:
        return min(Fraction(1), settings.full_budget / len(round_sizes(n, settings.eta)) / n) < one_epoch

    n_fitting = 1 + bisect_left(range(2, settings.n_trials + 1), True, key=too_many)
    return max(n_fitting, len(settings.initial)) if n_fitting > 1 else settings.n_trials


def plan_next_round(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Round:
    """Return the plan of the first round that is not open yet: its budget, and the fidelity which that pays for."""
    number = len(state.rounds) + 1
    sizes = round_sizes(state.planned_trials, settings.eta)  # an extension keeps the fidelities as they were planned
    if number > len(sizes):
        return _plan_finalists(state, settings, graphs)
    budgets, fidelity = round_budgets(state, settings, graphs), Fraction(0)
    for i, budget in enumerate(budgets):  # all rounds again: their recorded fidelities are floats, these are exact
        costs = [state.configurations[n].relative_cost for n in state.entrants(i + 1)]
        affordable = fidelity_of(budget * len(costs) / sizes[i], costs)
        fidelity = max(fidelity, min(affordable, _next_round_fidelity(budgets[0], costs, sizes[i + 1 :])))
    previous = [past.plan for past in state.rounds]
    plan = plan_round(number, fidelity, budgets[-1], sizes[number - 1], settings, graphs, previous)
    if number < len(sizes) or len(state.sizes) == len(sizes):
        return plan
    return replace(plan, before_finalists=True, trend=0.0)  # the finalists' round shows more (decision 0048)


def _plan_finalists(state: SearchState, settings: SearchSettings, graphs: Graphs) -> Round:
    """Return a comparison on the full graph: with the epochs after which the last round was validated first; to compare
    the closest again, with all epochs of the last round; at last, with all epochs of a full training.

    The second is decided by extrapolation: the next doubling of the epochs brings as much as the last one did.
    """
    last = next(past.plan for past in state.rounds if past.plan.before_finalists)
    before, shape = state.rounds[-1].plan, graphs.shape((1.0,))
    stage = 2 if last.whole else before.number - last.number  # 0, 1 or 2: the comparisons so far
    epochs = (last.epochs / last.n_validations, last.epochs, settings.max_epochs)[stage]
    positives, all_positives = max(1, round(epochs * shape.n_train)), round(settings.max_epochs * shape.n_train)
    cost = float(cost_of(positives - (before.positives if stage else 0), settings, graphs.n_train))
    what = (
        "finalists are compared on the full graph, outside the budget; the winner's training continues",
        "the closest finalists continue on the full graph, outside the budget; the winner's training continues",
        "the closest finalists are trained to the end, outside the budget; the winner is then trained already",
    )[stage]
    doublings = math.log2(max(1.0, all_positives / positives))
    return Round(
        number=before.number + 1, n_trials=state.sizes[before.number], share=0.0, fidelity=cost, graph_fraction=1.0,
        epoch_fraction=positives / shape.n_train / settings.max_epochs, fractions=(), whole=True, k=None,
        n_entities=shape.n_entities, n_relations=shape.n_relations, n_train=shape.n_train, n_valid=shape.n_valid,
        entity_share=1.0, positives=positives, continues=stage > 0, cost=cost, compares_finalists=True,
        trend=min(1.0, doublings) if stage else 0.0, to_the_end=positives == all_positives,
        notes=(what,),
    )  # fmt: skip


def round_budgets(state: SearchState, settings: SearchSettings, graphs: Graphs) -> list[Fraction]:
    """Return the exact budget of every open round and of the next one.

    Each has B / rounds, or a share of it if the search would not end in time. With `carry_over`, the next one also gets
    what was left: by trials that diverged, and by a round whose fidelity was capped at 1.
    """
    base = settings.full_budget / max(1, len(round_sizes(state.planned_trials, settings.eta)))
    budgets, seen = [base], 0
    for number, past in enumerate(state.rounds, 1):
        planned = past.plan.positives - (seen if past.plan.continues else 0)
        seen = past.plan.positives
        left = Fraction(0)
        if settings.carry_over:
            costs = {n: Fraction(state.configurations[n].relative_cost) for n in past.results}
            unused = (
                costs[n] * max(0, planned - r.positives) for n, r in past.results.items() if r.status == "diverged"
            )
            left += cost_of(1, settings, graphs.n_train) * sum(unused, Fraction(0))
            if past.plan.fidelity == 1.0:
                left += max(Fraction(0), budgets[-1] - sum(costs.values(), Fraction(0)))
        budgets.append(base * Fraction(state.shares.get(number + 1, 1.0)) + left)
    return budgets


def _next_round_fidelity(base: Fraction, costs: list[float], next_sizes: list[int]) -> Fraction:
    """Return the fidelity that the next round can afford for its most expensive entrants from its own budget.

    A carried-over budget may not lift a round above it: survivors could not continue at a lower fidelity.
    """
    if not next_sizes or not costs:
        return Fraction(1)
    return base / sum((Fraction(c) for c in sorted(costs)[-next_sizes[0] :]), Fraction(0))


def plan_round(
    number: int,
    fidelity: Fraction,
    budget: Fraction,
    n_trials: int,
    settings: SearchSettings,
    graphs: Graphs,
    previous: Sequence[Round] = (),
) -> Round:
    """Return the round whose trials may each cost `fidelity` of a full training."""
    graph_fraction, notes = _graph_fraction(fidelity, settings, graphs)
    earlier = tuple(r.graph_fraction for r in previous) if settings.warm_start != "off" else ()
    fractions = (*earlier, graph_fraction)
    is_last = n_trials <= settings.eta
    match_valid = is_last and settings.last_round_holdout == "match_valid"
    isolated = isolated_shape(fractions, graphs) if match_valid else None
    shape = isolated or graphs.shape(fractions)
    notes += [ISOLATED_NOTE] if isolated else []
    affordable = math.floor(fidelity * settings.full_epochs * graphs.n_train)
    if affordable > 0 and (shape.n_train == 0 or shape.n_valid == 0):
        raise ConfigError(
            f"The graph of round {number} has {shape.n_train:,} training and {shape.n_valid:,} validation triples, too "
            f"few to compare configurations: give a larger graph, a larger budget, or --variant epoch."
        )
    epoch_fraction = float(fidelity) if shape.whole else min(1.0, float(fidelity) / graph_fraction)
    if settings.variant == "graph" and not shape.whole:
        epoch_fraction = 1.0
    positives = min(round(epoch_fraction * settings.max_epochs * shape.n_train), affordable)
    if positives < 1:
        raise ConfigError(
            f"budget={settings.budget:g} leaves each of the {n_trials} trials of round {number} less than one triple: "
            f"give a larger budget, more epochs or fewer trials."
        )
    continues = settings.variant == "epoch" and bool(previous)
    billed = positives - (previous[-1].positives if continues else 0)
    return Round(
        number=number, n_trials=n_trials, share=float(budget), fidelity=float(fidelity), graph_fraction=graph_fraction,
        epoch_fraction=epoch_fraction, fractions=fractions, whole=shape.whole, k=shape.k, n_entities=shape.n_entities,
        n_relations=shape.n_relations, n_train=shape.n_train, n_valid=shape.n_valid,
        entity_share=shape.n_entities / graphs.n_entities, positives=positives, continues=continues,
        cost=float(cost_of(billed, settings, graphs.n_train)),
        notes=(*notes, *_warnings(positives, shape, settings, graphs)), trend=settings.trend,
        triple_share=None if settings.reduction == "core-order" else shape.n_train / graphs.n_train,
        isolated=isolated is not None,
    )  # fmt: skip


def isolated_shape(fractions: tuple[float, ...], graphs: Graphs) -> Shape | None:
    """Return the sizes of a last round's graph that holds out isolated pairs; None for random triples.

    That is so if the valid split has other pairs too, if there are too few, and for a small or the whole graph.
    """
    if not ISOLATED_FROM <= fractions[-1] < 1 or not graphs.valid_pairs_isolated or graphs.shape(fractions).whole:
        return None
    shape = graphs.shape(fractions, True)
    return shape if shape.n_valid >= MIN_VALID else None


def fidelity_of(budget: Fraction, relative_costs: Sequence[float]) -> Fraction:
    """Return f = min(1, budget / trials); trials of different cost use up the budget together."""
    return min(Fraction(1), budget / sum((Fraction(c) for c in relative_costs), Fraction(0)))


def cost_of(positives: int, settings: SearchSettings, n_train: int) -> Fraction:
    """Return the cost of seeing this many positives, in full trainings, for a relative cost of 1."""
    return Fraction(positives) / (settings.full_epochs * n_train)


def round_config(full: TrainConfig, plan: Round, settings: SearchSettings) -> TrainConfig:
    """Return the training of a configuration at the fidelity of a round.

    It has the round's epochs, is validated at equal distances and at its end, and never stops early. Negatives scale
    with the entities, penalties with the triples (decision 0037), unless isolated pairs are held out (0039). A finalist
    that is trained to the end is trained as the winner would be.
    """
    if plan.to_the_end:
        return full
    share = plan.graph_fraction if plan.triple_share is None else plan.triple_share
    penalty_scale = 1.0 if plan.whole or plan.isolated or not settings.scaled_penalties else min(1.0, share)
    return full.changed(
        epochs=plan.epochs,
        valid_every=plan.epochs / plan.n_validations,
        patience=None,
        negatives_head=scaled_negatives(full.negatives_head, plan, settings.negatives_floor),
        negatives_tail=scaled_negatives(full.negatives_tail, plan, settings.negatives_floor),
        penalty_entity=penalty_scale * full.penalty_entity,
        penalty_relation=penalty_scale * full.penalty_relation,
    )


def scaled_negatives(count: int, plan: Round, floor: float) -> int:
    """Return N_i = max(1, ⌈N·max(|E_i|/|E|, floor)⌉), at most |E_i| − 1; 0 stays 0."""
    if count == 0:
        return 0
    scaled = math.ceil(round(count * max(plan.entity_share, floor), 9))
    return max(1, min(scaled, plan.n_entities - 1))


def _graph_fraction(fidelity: Fraction, settings: SearchSettings, graphs: Graphs) -> tuple[float, list[str]]:
    """Return g and notes on what the guard rails changed."""
    if settings.variant == "epoch":
        return 1.0, []
    if settings.variant == "graph":
        return float(fidelity), []
    chosen = math.sqrt(fidelity)
    if not settings.guard_rails:
        return chosen, []
    notes = []
    least = least_fraction(graphs, min_entities(graphs), MIN_VALID)
    if chosen < least:
        size = "the whole graph" if least == 1 else f"{_percent(least)} of the triples"
        notes.append(
            f"guard rail: {size} instead of {_percent(chosen)}, and fewer epochs, so that there are "
            f"{min_entities(graphs):,} entities and {MIN_VALID:,} validation triples if possible"
        )
        chosen = least
    one_epoch = float(fidelity * settings.full_epochs)  # with this fraction, a trial sees its graph exactly once
    if one_epoch < chosen and settings.max_epochs >= 1:
        notes.append(
            f"guard rail: {_percent(one_epoch)} of the triples instead of {_percent(chosen)}, for one whole epoch"
        )
        chosen = one_epoch
    return min(1.0, chosen), notes


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %" if fraction < 0.995 else "all"


def least_fraction(graphs: Graphs, n_entities: int, n_valid: int, most: float = MAX_SUBGRAPH) -> float:
    """Return the smallest fraction of the triples with this many entities and validation triples.

    If that exceeds `most`, return 1, provided that the dataset has this many validation triples.
    """
    least = graphs.smallest_fraction(n_entities, n_valid)
    return 1.0 if least > most and graphs.shape((1.0,)).n_valid >= n_valid else least


def min_entities(graphs: Graphs) -> int:
    return min(graphs.n_entities, max(MIN_ENTITIES, math.ceil(MIN_ENTITY_SHARE * graphs.n_entities)))


def _warnings(positives: int, shape: Shape, settings: SearchSettings, graphs: Graphs) -> list[str]:
    """Return warnings about a round that is smaller than the guard rails require."""
    notes = []
    if positives < shape.n_train and settings.max_epochs >= 1:
        notes.append(f"warning: a trial sees only {positives / shape.n_train:.2f} epochs")
    if shape.n_entities < min_entities(graphs):
        notes.append(f"warning: {shape.n_entities:,} entities are few to compare configurations")
    if shape.n_valid < MIN_VALID:
        notes.append(f"warning: {shape.n_valid:,} validation triples are few to compare configurations")
    if shape.fell_back:
        notes.append("the innermost core is too large for this round, so it was cut further")
    return notes


def plan_extension(
    state: SearchState,
    settings: SearchSettings,
    *,
    n_trials: int | None = None,
    budget: float | None = None,
    relative_costs: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the fields of the event `search_extended`: sizes of the rounds, the budget they take, new settings.

    relative_costs: of all configurations, the new ones included (default: 1 each).
    """
    _check(state, settings, n_trials, budget)
    halving = [past.plan for past in state.rounds if not past.plan.compares_finalists]
    fidelities, before = [Fraction(plan.fidelity) for plan in halving], state.sizes[: len(halving)]
    largest_first = sorted((Fraction(c) for c in relative_costs), reverse=True)
    costs = largest_first or [Fraction(1)] * (n_trials or state.sizes[0])
    if n_trials is not None:
        wanted = round_sizes(n_trials, settings.eta)
        sizes = [max(n, wanted[i] if i < len(wanted) else 2) for i, n in enumerate(before)]
    else:
        added = Fraction(str(budget)) - Fraction(str(state.budget))
        sizes = _more_survivors(before, fidelities, added, costs)
        if sizes == before:
            raise ConfigError(
                f"--budget {budget:g} pays for no further trial in a later round: give more, or give --n-trials for "
                f"more configurations in the first round."
            )
    total = float(Fraction(str(state.budget)) + _largest_cost(sizes, before, fidelities, costs))
    comparisons = _comparison_sizes(sizes[-1], settings, whole=halving[-1].whole)
    finalists = comparisons[: len(state.sizes) - len(before)]
    return {"sizes": sizes + finalists, "budget": total, "settings": {"n_trials": sizes[0], "budget": total}}


def _check(state: SearchState, settings: SearchSettings, n_trials: int | None, budget: float | None) -> None:
    if settings.warm_start != "off":
        raise ConfigError(
            "--extend does not work with a warm start, which has dropped its weights: start a new search."
        )
    if not state.sizes:
        raise ConfigError("--extend adds trials to rounds, and a search of one trial has none: start a new search.")
    only_comparisons_missing = state.winner is not None and state.rounds[-1].plan.finalists_follow
    if len(state.rounds) < len(state.sizes) and not only_comparisons_missing:
        raise ConfigError("--extend needs a search whose rounds are all open: run `grash resume` first.")
    if (n_trials is None) == (budget is None):
        raise ConfigError("--extend needs either --n-trials or --budget, larger than before.")
    make_settings({"n_trials": n_trials} if budget is None else {"budget": budget})  # checks its range
    if n_trials is not None and n_trials <= state.sizes[0]:
        raise ConfigError(f"--n-trials {n_trials} adds nothing: the search already has {state.sizes[0]}.")
    if budget is not None and Fraction(str(budget)) <= Fraction(str(state.budget)):
        raise ConfigError(f"--budget {budget:g} adds nothing: the search already has {state.budget:g}.")


def _more_survivors(sizes: list[int], fidelities: list[Fraction], added: Fraction, costs: list[Fraction]) -> list[int]:
    """Return the largest sizes of later rounds that cannot cost more than what is added."""
    mean = sum(costs, Fraction(0)) / len(costs)
    for parts in range(_PARTS, 0, -1) if len(sizes) > 1 else ():
        part = added * parts / _PARTS / (len(sizes) - 1)
        larger = [sizes[0]]
        for i in range(1, len(sizes)):
            larger.append(min(larger[-1], sizes[i] + int(part / fidelities[i] / mean)))
        if _largest_cost(larger, sizes, fidelities, costs) <= added:
            return larger
    return list(sizes)


def _largest_cost(sizes: list[int], before: list[int], fidelities: list[Fraction], costs: list[Fraction]) -> Fraction:
    """Return the most that the trials of an extension can cost.

    If m trials are new in a round, at most m reach the next one by their scores, and every survivor that they displace
    leaves one more place to fill. costs: largest first.
    """
    total, new, added = Fraction(0), 0, 0
    for i, (size, previous) in enumerate(zip(sizes, before)):
        displaced, added = max(0, new - added), size - previous
        new = min(size, max(new, added + displaced)) if i else added
        total += fidelities[i] * sum(costs[:new], Fraction(0))
    return total
