"""Reasons: planted premises come first, and the support of a triple is what a gradient step does."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

import grash
from grash.api.explain import _gradients, find_paths, support, surroundings
from grash.errors import InputError, UnknownName
from grash.models import MODELS
from planted_world import planted_world
from small_graph import grash as run
from small_graph import model_of, rings


@pytest.mark.slow
def test_the_planted_premise_is_among_the_first_three_reasons():
    graph, rules = planted_world()
    model = grash.train(
        graph, model="complex", dim=64, training="1vsall", reciprocal=True, batch_size=256, epochs=12, penalty="n3",
        penalty_entity=0.1, penalty_relation=0.1, valid_every=12, device="cpu", evaluate=False,
    )  # fmt: skip
    found: dict[str, list[bool]] = {"pays_with": [], "spoken_in": []}
    for triple, premise in list(rules.items())[::3]:
        reasons = model.explain(*triple, k=3).reasons
        found[triple[1]].append(any(set(reason.triples) == set(premise) for reason in reasons))
    for relation, hits in found.items():
        assert len(hits) > 50 and np.mean(hits) >= 0.8, relation


def score_of(model, triple):
    """The mean of both directions with reciprocal relations."""
    ids = np.array([triple])
    sides = ("tail", "head") if model.kge.reciprocal else ("tail",)
    return np.mean([model.score(ids, side=side)[0] for side in sides])


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("reciprocal", [False, True])
def test_support_is_the_fall_of_the_score_after_a_gradient_step(name, reciprocal):
    model = model_of(rings(), name, dim=8, seed=1)
    if reciprocal:
        kge = model.kge
        relation = torch.cat([kge.relation, kge.relation.flip(1) + 0.5])
        model.kge = type(kge)(kge.entity, relation, reciprocal=True, norm=kge.norm, weights=kge.weights)
    triple = (3, 1, 5)
    for other in ((3, 0, 4), (4, 0, 5), (5, 2, 3), (2, 1, 4), (7, 2, 8)):
        stepped, size = deepcopy(model), 1e-3
        rows = _gradients(model.kge, np.array([other]))
        length = sum(float(part.square().sum()) for part in rows.values())
        places = {"head": ("entity", other[0]), "tail": ("entity", other[2]), "relation": ("relation", other[1])}
        places["inverse"] = ("relation", other[1] + model.kge.n_relations)
        for part, gradient in rows.items():
            table, row = places[part]
            getattr(stepped.kge, table)[row] -= size / length * gradient[0]
        fall = (score_of(model, triple) - score_of(stepped, triple)) / size
        own = (score_of(model, other) - score_of(stepped, other)) / size
        assert own == pytest.approx(1, abs=0.03)
        assert support(model.kge, triple, [other])[0] == pytest.approx(fall, abs=0.03)


def test_paths_are_those_of_a_search_by_hand():
    graph = grash.from_triples(
        [("a", "r", "b"), ("a", "s", "m"), ("b", "t", "m"), ("b", "u", "a"), ("m", "r", "x"), ("a", "s", "a")],
        valid=[], test=[],
    )  # fmt: skip
    a, m, b = (graph.entities.id(n) for n in "amb")
    r, s, t, u = (graph.relations.id(n) for n in "rstu")
    near = surroundings(graph.train, (a, r, b))
    assert find_paths(near, (a, r, b), graph.train) == [((b, u, a),), ((a, s, m), (b, t, m))]
    about = near.statistics
    assert (about.n_triples, about.n_heads, about.n_tails, about.head_seen, about.tail_seen) == (2, 2, 2, 1, 1)


def test_no_path_takes_the_same_triple_there_and_back():
    graph = grash.from_triples([("a", "s", "m"), ("a", "t", "m"), ("b", "s", "m")], valid=[], test=[])
    (a, s, m), (_, t, _) = graph.train[:2].tolist()
    near = surroundings(graph.train, (a, s, a))
    assert find_paths(near, (a, s, a), graph.train) == [((a, s, m), (a, t, m)), ((a, t, m), (a, s, m))]


def test_a_path_of_three_triples_is_found_where_there_is_no_shorter_one():
    graph = grash.from_triples([("a", "s", "b"), ("c", "s", "b"), ("c", "t", "d"), ("a", "u", "e")], valid=[], test=[])
    model = model_of(graph)
    (reason,) = model.explain("a", "u", "d").reasons[:1]
    assert reason.triples == (("a", "s", "b"), ("c", "s", "b"), ("c", "t", "d"))


def test_a_triple_is_no_reason_for_itself_and_an_unconnected_one_has_none():
    graph = grash.from_triples([("a", "r", "b"), ("c", "s", "d"), ("c", "rdf:type", "T")], valid=[], test=[])
    model = model_of(graph)
    known = model.explain("a", "r", "b")
    assert known.known and known.reasons == () and known.statistics.n_triples == 1
    new = model.explain("c", "s", "T")
    assert not new.known and [reason.triples for reason in new.reasons][0] == (("c", "rdf:type", "T"),)
    assert new.statistics.types[0].type == "T" and new.statistics.types[0].share == 1.0


def test_bad_questions_are_sentences(tmp_path):
    model = model_of(rings())
    with pytest.raises(UnknownName, match="person 1"):
        model.explain("person1", "next", "person 2")
    with pytest.raises(InputError, match="k=0 is not valid"):
        model.explain("person 1", "next", "person 2", k=0)
    model.save(tmp_path / "model")
    ran = run("explain", tmp_path / "model", "--head", "person 1", "--relation", "next", "--tail", "person 2")
    assert ran.code == 0 and "support" in ran.out and "next has" in ran.out
