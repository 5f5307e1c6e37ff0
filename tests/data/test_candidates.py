"""Entities that may answer a question: seen on that side of the relation, or of a type."""

from __future__ import annotations

import numpy as np
import pytest

import grash
from grash.data import candidates
from grash.data.arrays import in_blocks
from grash.data.candidates import SeenEntities, common_entities, entities_of_type, find_type_relation
from grash.errors import InputError
from small_graph import rings

TYPED = [("Lima", "rdf:type", "City"), ("Rome", "rdf:type", "City"), ("Peru", "rdf:type", "Country"),
         ("Lima", "capital_of", "Peru"), ("Rome", "near", "Lima")]  # fmt: skip


def test_the_seen_entities_are_those_of_a_loop_over_train():
    graph = rings()
    seen = SeenEntities(graph)
    for relation in range(graph.n_relations):
        for side, column in (("head", 0), ("tail", 2)):
            wanted = sorted({int(t[column]) for t in graph.train if t[1] == relation})
            assert seen(relation, side).tolist() == wanted


def test_several_relations_are_read_in_one_pass(monkeypatch):
    graph, passes = rings(), []
    monkeypatch.setattr(candidates, "in_blocks", lambda *given: passes.append(1) or in_blocks(*given))
    monkeypatch.setattr(candidates, "_ROWS", 7)
    together, each = SeenEntities(graph), SeenEntities(graph)
    relations = [*range(graph.n_relations), graph.n_relations]  # the last is in no triple
    together.read(reversed(relations))
    assert len(passes) == 1
    for relation in relations:
        for side in ("head", "tail"):
            assert together(relation, side).tolist() == each(relation, side).tolist()
    assert len(passes) == 1 + len(relations) and not len(together(graph.n_relations, "tail"))


def test_valid_and_test_say_nothing_about_the_candidates():
    graph = grash.from_triples([("a", "r", "b")], valid=[("b", "r", "a")], test=[])
    assert SeenEntities(graph)(0, "head").tolist() == [0]


@pytest.mark.parametrize("name", ["rdf:type", "P31", "instance of", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"])
def test_a_type_relation_is_known_by_its_name(name):
    graph = grash.from_triples([("a", "r", "b"), ("a", name, "b")], valid=[], test=[])
    assert find_type_relation(graph) == 1
    assert find_type_relation(rings()) is None


def test_entities_of_a_type_come_from_type_triples():
    graph = grash.from_triples(TYPED, valid=[], test=[])
    city = graph.entities.id("City")
    assert graph.entities.names(entities_of_type(graph, 0, city)) == ["Lima", "Rome"]
    with pytest.raises(InputError, match="No entity has the type 'Lima' in train"):
        entities_of_type(graph, 0, graph.entities.id("Lima"))


def test_no_condition_and_a_condition_is_the_condition():
    ids = np.array([1, 3])
    assert common_entities(None, ids) is ids
    assert common_entities(np.array([2, 3]), ids).tolist() == [3]
