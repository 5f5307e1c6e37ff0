"""The schedule of a search: how many trials a round has, what each may cost, and the graph and epochs this pays for.

Pure functions: settings and sizes of subgraphs in, a `Round` out (paper, Algorithm 1, lines 1-7; docs/decisions/0014
explains the differences). Budgets are exact fractions, so the total cost can never exceed the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from grash.errors import ConfigError
from grash.search.settings import SearchSettings
from grash.search.trial import Round
from grash.training.config import TrainConfig

MIN_ENTITY_SHARE = 0.01  # guard rails: a subgraph has at least this share and this number of entities
MIN_ENTITIES = 2000
MIN_VALID = 1000  # and this number of validation triples
ISOLATED_FROM = 0.25  # smaller graphs predict full-training performance better with random triples (decision 0039)
ISOLATED_NOTE = "validation triples are isolated pairs, like the dataset's valid split: no other triple links them"
MAX_SUBGRAPH = 0.5  # a subgraph that must be larger saves little, and the whole graph has the better validation


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


def fitting_trials(settings: SearchSettings, graphs: Graphs) -> int:
    """Return the number of trials of the first round: `n_trials`, or fewer if the guard rails require it.

    Only variant=combined lowers it, and never below the number of configurations that the user gave.
    """
    if not settings.guard_rails or settings.variant != "combined" or settings.max_epochs < 1:
        return settings.n_trials
    least = _least_cost(settings, graphs)
    for n in range(settings.n_trials, 1, -1):
        if first_fidelity(settings, n) >= least:
            return max(n, len(settings.initial))
    return settings.n_trials


def first_fidelity(settings: SearchSettings, n_trials: int) -> Fraction:
    return min(Fraction(1), settings.full_budget / len(round_sizes(n_trials, settings.eta)) / n_trials)


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
        number=number,
        n_trials=n_trials,
        share=float(budget),
        fidelity=float(fidelity),
        graph_fraction=graph_fraction,
        epoch_fraction=epoch_fraction,
        fractions=fractions,
        whole=shape.whole,
        k=shape.k,
        n_entities=shape.n_entities,
        n_relations=shape.n_relations,
        n_train=shape.n_train,
        n_valid=shape.n_valid,
        entity_share=shape.n_entities / graphs.n_entities,
        positives=positives,
        continues=continues,
        cost=float(cost_of(billed, settings, graphs.n_train)),
        notes=(*notes, *_warnings(positives, shape, settings, graphs)),
        trend=settings.trend,
        triple_share=None if settings.reduction == "core-order" else shape.n_train / graphs.n_train,
        isolated=isolated is not None,
    )


def isolated_shape(fractions: tuple[float, ...], graphs: Graphs) -> Shape | None:
    """Return the sizes of a last round's graph that holds out isolated pairs; None if it should hold out random triples.

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

    It has the round's epochs, is validated after half and after all of them, and never stops early. Negatives scale
    with the entities, penalties with the triples (decision 0037), unless isolated pairs are held out (0039).
    """
    share = plan.graph_fraction if plan.triple_share is None else plan.triple_share
    penalty_scale = 1.0 if plan.whole or plan.isolated or not settings.scaled_penalties else min(1.0, share)
    return full.changed(
        epochs=plan.epochs,
        valid_every=plan.epochs / 2,
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
        size = "the whole graph" if least == 1 else f"{least:.3f} of the triples"
        notes.append(
            f"guard rail: {size} instead of {chosen:.3f}, to have {min_entities(graphs):,} entities and {MIN_VALID:,} "
            f"validation triples if possible; with fewer epochs"
        )
        chosen = least
    one_epoch = float(fidelity * settings.full_epochs)  # with this fraction, a trial sees its graph exactly once
    if one_epoch < chosen and settings.max_epochs >= 1:
        notes.append(f"guard rail: {one_epoch:.3f} of the triples instead of {chosen:.3f}, for one whole epoch")
        chosen = one_epoch
    return min(1.0, chosen), notes


def least_fraction(graphs: Graphs, n_entities: int, n_valid: int, most: float = MAX_SUBGRAPH) -> float:
    """Return the smallest fraction of the triples with this many entities and validation triples.

    If that exceeds `most`, return 1, provided that the dataset has this many validation triples.
    """
    least = graphs.smallest_fraction(n_entities, n_valid)
    return 1.0 if least > most and graphs.shape((1.0,)).n_valid >= n_valid else least


def min_entities(graphs: Graphs) -> int:
    return min(graphs.n_entities, max(MIN_ENTITIES, math.ceil(MIN_ENTITY_SHARE * graphs.n_entities)))


def _least_cost(settings: SearchSettings, graphs: Graphs) -> Fraction:
    """Return the fidelity of one epoch on the smallest graph that the guard rails allow."""
    least = Fraction(least_fraction(graphs, min_entities(graphs), MIN_VALID))
    return min(Fraction(1), least / settings.full_epochs)


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
