"""How many trials a round has, how much each may cost, and what that buys: graph, epochs, positives (D1–D4, D12).

Pure: settings and sizes of subgraphs in, `Round` out. Shares of the budget are exact fractions, so that the bill can
never exceed it. The paper's Algorithm 1, lines 1–7; where they differ, docs/decisions/0014 says why.
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

MIN_ENTITY_SHARE = 0.01
MIN_ENTITIES = 2000
MIN_VALID = 1000
ISOLATED_FROM = 0.25  # of the triples: smaller graphs after few epochs foretell better by any triples (0039)
ISOLATED_NOTE = "held out are triples like the dataset's valid ones: no other triple joins their two entities"
MOST_OF_A_GRAPH = 0.5  # a subgraph that has to be larger saves little: the whole graph has the better validation


@dataclass(frozen=True)
class Shape:
    """The sizes of a subgraph."""

    n_entities: int
    n_relations: int
    n_train: int
    n_valid: int
    k: int | None = None
    whole: bool = False  # the full graph with the dataset's own validation triples
    fell_back: bool = False  # no core was small enough, and the chain was cut inside the innermost


class Graphs(Protocol):
    """The subgraphs that a schedule can choose from."""

    n_entities: int
    n_train: int

    @property
    def valid_pairs_isolated(self) -> bool:
        """Whether the dataset's valid triples are of a kind that a last round should hold out too (0039)."""

    def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        """Sizes of the subgraph with fractions[-1] of the triples."""

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        """The smallest fraction whose subgraph has so many entities and validation triples."""


def round_sizes(n_trials: int, eta: int) -> list[int]:
    """Trials of each round: n, ⌈n/η⌉, … until 1 would be left."""
    sizes = []
    while n_trials > 1:
        sizes.append(n_trials)
        n_trials = -(-n_trials // eta)
    return sizes


def fitting_trials(settings: SearchSettings, graphs: Graphs) -> int:
    """The number of first-round trials, lowered where the rails could not hold otherwise (combined only), but not below
    the configurations that the user gave."""
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
    share: Fraction,
    n_trials: int,
    settings: SearchSettings,
    graphs: Graphs,
    before: Sequence[Round] = (),
) -> Round:
    """The round whose trials may each cost `fidelity` of a full run."""
    graph_fraction, notes = _graph_fraction(fidelity, settings, graphs)
    earlier = tuple(r.graph_fraction for r in before) if settings.warm_start != "off" else ()
    fractions = (*earlier, graph_fraction)
    decides = n_trials <= settings.eta and settings.last_round_holdout == "match_valid"
    isolated = isolated_shape(fractions, graphs) if decides else None
    shape = isolated or graphs.shape(fractions)
    notes += [ISOLATED_NOTE] if isolated else []
    most = math.floor(fidelity * settings.full_epochs * graphs.n_train)
    if most > 0 and (shape.n_train == 0 or shape.n_valid == 0):
        raise ConfigError(_too_small(number, shape))
    epoch_fraction = float(fidelity) if shape.whole else min(1.0, float(fidelity) / graph_fraction)
    if settings.variant == "graph" and not shape.whole:
        epoch_fraction = 1.0
    positives = min(round(epoch_fraction * settings.max_epochs * shape.n_train), most)
    if positives < 1:
        raise ConfigError(
            f"budget={settings.budget:g} leaves each of the {n_trials} trials of round {number} less than one step: "
            f"give a larger budget, more epochs or fewer trials."
        )
    continues = settings.variant == "epoch" and bool(before)
    billed = positives - (before[-1].positives if continues else 0)
    return Round(
        number=number,
        n_trials=n_trials,
        share=float(share),
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
    """Sizes of a last round's graph that holds out triples like the dataset's own; None where it should hold out any:
    they are no others, too few, or the graph is small or the whole one."""
    if not ISOLATED_FROM <= fractions[-1] < 1 or not graphs.valid_pairs_isolated or graphs.shape(fractions).whole:
        return None
    shape = graphs.shape(fractions, True)
    return shape if shape.n_valid >= MIN_VALID else None


def fidelity_of(share: Fraction, prices: Sequence[float]) -> Fraction:
    """f = min(1, share / trials); where trials differ in price, together they cost the share (D2, D15)."""
    return min(Fraction(1), share / sum((Fraction(p) for p in prices), Fraction(0)))


def cost_of(positives: int, settings: SearchSettings, n_train: int) -> Fraction:
    """What seeing so many positives is billed, in full runs (price 1)."""
    return Fraction(positives) / (settings.full_epochs * n_train)


def round_config(full: TrainConfig, plan: Round, settings: SearchSettings) -> TrainConfig:
    """What a trial of a round trains: for the round's epochs, validated after half and after all of them, never stopped
    early, with fewer negatives, and on a share of the triples with that share of its penalties (0037), unless it is
    validated on triples like the dataset's own (0039)."""
    share = plan.graph_fraction if plan.triple_share is None else plan.triple_share
    weaker = 1.0 if plan.whole or plan.isolated or not settings.scaled_penalties else min(1.0, share)
    return full.changed(
        epochs=plan.epochs,
        valid_every=plan.epochs / 2,
        patience=None,
        negatives_head=scaled_negatives(full.negatives_head, plan, settings.negatives_floor),
        negatives_tail=scaled_negatives(full.negatives_tail, plan, settings.negatives_floor),
        penalty_entity=weaker * full.penalty_entity,
        penalty_relation=weaker * full.penalty_relation,
    )


def scaled_negatives(count: int, plan: Round, floor: float) -> int:
    """N_i = max(1, ⌈N·max(|E_i|/|E|, floor)⌉), at most |E_i| − 1; a side that is left out stays so (D6)."""
    if count == 0:
        return 0
    scaled = math.ceil(round(count * max(plan.entity_share, floor), 9))
    return max(1, min(scaled, plan.n_entities - 1))


def _graph_fraction(fidelity: Fraction, settings: SearchSettings, graphs: Graphs) -> tuple[float, list[str]]:
    """g, and what the rails changed."""
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
        size = "whole" if least == 1 else f"{least:.3f} of the triples"
        notes.append(
            f"rail: the graph is {size} instead of {chosen:.3f} of it, for {min_entities(graphs):,} entities and "
            f"{MIN_VALID:,} validation triples as far as there are; fewer epochs pay for it"
        )
        chosen = least
    most = float(fidelity * settings.full_epochs)  # with it a trial sees its graph exactly once
    if most < chosen and settings.max_epochs >= 1:
        notes.append(f"rail: the graph is {most:.3f} of the triples instead of {chosen:.3f}, for one whole epoch")
        chosen = most
    return min(1.0, chosen), notes


def least_fraction(graphs: Graphs, n_entities: int, n_valid: int, most: float = MOST_OF_A_GRAPH) -> float:
    """The smallest share of the triples that has so many entities and validation triples; where that is most of the
    graph, all of it, if it comes with as many validation triples."""
    least = graphs.smallest_fraction(n_entities, n_valid)
    return 1.0 if least > most and graphs.shape((1.0,)).n_valid >= n_valid else least


def min_entities(graphs: Graphs) -> int:
    return min(graphs.n_entities, max(MIN_ENTITIES, math.ceil(MIN_ENTITY_SHARE * graphs.n_entities)))


def _least_cost(settings: SearchSettings, graphs: Graphs) -> Fraction:
    """The fidelity of one epoch on the smallest graph that the rails allow."""
    least = Fraction(least_fraction(graphs, min_entities(graphs), MIN_VALID))
    return min(Fraction(1), least / settings.full_epochs)


def _warnings(positives: int, shape: Shape, settings: SearchSettings, graphs: Graphs) -> list[str]:
    """What a person should know about a round that is smaller than the rails would have it."""
    said = []
    if positives < shape.n_train and settings.max_epochs >= 1:
        said.append(f"warning: a trial sees {positives / shape.n_train:.2f} epochs, less than one")
    if shape.n_entities < min_entities(graphs):
        said.append(f"warning: {shape.n_entities:,} entities are few to judge by")
    if shape.n_valid < MIN_VALID:
        said.append(f"warning: {shape.n_valid:,} validation triples are few to judge by")
    if shape.fell_back:
        said.append("the innermost core is too large for this round: the chain goes on inside it")
    return said


def _too_small(number: int, shape: Shape) -> str:
    return (
        f"The graph of round {number} has {shape.n_train:,} training and {shape.n_valid:,} validation triples, too few "
        f"to compare configurations: give a larger graph, a larger budget, or --variant epoch."
    )
