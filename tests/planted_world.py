"""The bundled graph with two planted rules: what they imply is added, and a fifth of it is held out."""

from __future__ import annotations

import numpy as np

import grash
from grash.data.dataset import Dataset

Names = tuple[str, str, str]


def planted_world(hidden: float = 0.2, seed: int = 0) -> tuple[Dataset, dict[Names, tuple[Names, ...]]]:
    """Return the graph, and for each held-out triple the premise from which its rule concludes it.

    located_in(x, y), uses_currency(y, z) → pays_with(x, z)        speaks(y, x) → spoken_in(x, y)
    """
    world = grash.load_dataset("world")
    triples = np.concatenate([world.train, world.valid, world.test])
    columns = (world.entities, world.relations, world.entities)
    facts = list(zip(*(c.names(ids) for c, ids in zip(columns, triples.T))))
    money = {head: tail for head, relation, tail in facts if relation == "uses_currency"}
    rules: dict[Names, tuple[Names, ...]] = {}
    for head, relation, tail in facts:
        if relation == "located_in" and tail in money:
            country, currency = tail, money[tail]
            rules[head, "pays_with", currency] = ((head, relation, tail), (country, "uses_currency", currency))
        if relation == "speaks":
            rules[tail, "spoken_in", head] = ((head, relation, tail),)
    held_out = np.random.default_rng(seed).random(len(rules)) < hidden
    shown = [triple for triple, hide in zip(rules, held_out) if not hide]
    concluded = [triple for triple, hide in zip(rules, held_out) if hide]
    graph = grash.from_triples(facts + shown, valid=concluded[::2], test=concluded[1::2], name="planted")
    return graph, {triple: rules[triple] for triple in concluded}
