"""Predictions, scores and neighbors against full sorts of plain scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import grash
from grash.api.model import Model, Query
from grash.data.dataset import Dataset
from grash.errors import ConfigError, Diverged, FormatError, InputError, UnknownName
from grash.files import write_checksums
from grash.models import MODELS
from small_graph import model_of, rings, some_calibration, write_tsv


@pytest.mark.parametrize("name", sorted(MODELS))
def test_predictions_are_the_sorted_scores_of_all_triples(name):
    model = model_of(rings(), name)
    for relation in ("next", "two on"):
        tails = [(("person 3", relation, f"person {i}")) for i in range(12)]
        scores = model.score(tails)
        answers = model.predict(head="person 3", relation=relation, k=12)
        assert [a.id for a in answers] == np.lexsort((np.arange(12), -scores)).tolist()
        assert [a.score for a in answers] == pytest.approx(np.sort(scores)[::-1].tolist(), rel=1e-6)
    heads = model.score([(f"person {i}", "next", "person 3") for i in range(12)], side="head")
    answers = model.predict(relation="next", tail="person 3", k=12)
    assert [a.id for a in answers] == np.lexsort((np.arange(12), -heads)).tolist()


def test_a_question_about_a_name_without_training_is_answered_with_a_warning(caplog):
    test = [("new", "newer", "b"), ("a", "p", "newest"), ("a", "p", "last")]
    model = model_of(grash.from_triples([("a", "p", "b"), ("b", "p", "a")], test=test))
    caplog.clear()
    model.predict(head="a", relation="p")
    model.neighbors("b", 2)
    assert not caplog.text
    model.predict(head="new", relation="newer")
    assert "new, newer are in no training triple: answers about them are arbitrary." in caplog.text
    model.neighbors("newest", 2)
    assert "newest is in no training triple: answers about it are arbitrary." in caplog.text
    caplog.clear()
    model.explain("a", "p", "b")
    assert not caplog.text
    model.explain("a", "newer", "last")
    assert "last, newer are in no training triple: answers about them are arbitrary." in caplog.text
    model.warn_of_unseen(model.dataset.test)
    assert "new, newest, last and 1 more are in no training triple" in caplog.text


def test_a_graph_whose_names_are_all_trained_is_not_read_for_a_question():
    model = model_of(rings())
    model.predict(head_id=5, relation="next")
    assert model.dataset.seen_in_train is None


@pytest.mark.parametrize("given", [3, None, ""])
def test_what_is_no_path_is_refused(given):
    with pytest.raises(InputError, match="is not the path of a model folder"):
        grash.load_model(given)
    with pytest.raises(InputError, match="(Got None|Got a value of type int|The path of the graph is empty)"):
        grash.load_dataset(given)


def test_known_answers_are_marked_and_left_out_on_request():
    dataset = rings()
    model = model_of(dataset)
    truths = {(h, r, t) for split in (dataset.train, dataset.valid, dataset.test) for h, r, t in split.tolist()}
    everyone = model.predict(head_id=5, relation="beside", k=100)
    assert {a.id for a in everyone if a.known} == {t for h, r, t in truths if (h, r) == (5, 2)} == {4, 6}
    fresh = model.predict(head_id=5, relation="beside", k=100, new_only=True)
    assert [a for a in everyone if not a.known] == fresh
    relations = model.predict(head_id=5, tail_id=6)
    assert {a.name for a in relations if a.known} == {"next", "beside"}
    assert [a.name for a in model.predict(head_id=5, tail_id=6, new_only=True)] == ["two on"]


def test_many_questions_get_the_answers_of_each():
    model = model_of(rings(), integers=True)
    questions = [("person 1", "next", None), (None, "next", "person 4"), ("person 2", None, "person 3")] * 3
    ids = [Query(7, 1, None)]
    assert model.predict_many(questions, 5) == [model.predict(*q, k=5) for q in questions]
    assert model.predict_many(ids, 5) == [model.predict(head="person 7", relation="two on", k=5)]
    assert model.predict_many([], 5) == []


def test_a_question_needs_exactly_two_parts():
    model = model_of(rings())
    with pytest.raises(InputError, match="only the head is given"):
        model.predict(head="person 1")
    with pytest.raises(InputError, match="all three are given"):
        model.predict("person 1", "next", "person 2")
    with pytest.raises(InputError, match="k=0 is not valid: give a whole number, 1 or more"):
        model.predict("person 1", "next", k=0)


def test_a_near_miss_gets_suggestions():
    model = model_of(rings())
    with pytest.raises(UnknownName, match="Did you mean 'person 1") as caught:
        model.predict(head="Person 1", relation="next")
    assert caught.value.kind == "entity"
    with pytest.raises(UnknownName, match="no relation named 'nxt'. Did you mean 'next'"):
        model.predict(head="person 1", relation="nxt")
    with pytest.raises(UnknownName, match="Ids go from 0 to 11"):
        model.predict(head_id=12, relation_id=0)


def test_an_integer_is_a_name_where_the_graph_has_names():
    dataset = grash.from_triples([("7", "2", "5"), ("5", "2", "9"), ("9", "3", "7")], n_valid=0, n_test=0)
    model = model_of(dataset)
    assert dataset.entities is not None and dataset.entities.id("5") == 1
    assert model.predict(head=5, relation=2) == model.predict(head="5", relation="2")
    assert model.predict(head=5, relation=2) == model.predict(head_id=1, relation_id=0)
    assert model.neighbors(5) == model.neighbors(entity_id=1)
    with pytest.raises(UnknownName, match="no entity named '0'. Ids are given as head_id="):
        model.predict(head=0, relation=2)
    with pytest.raises(UnknownName, match="no relation named '0'. Ids are given as relation_id="):
        model.predict(head=5, relation=0)
    with pytest.raises(InputError, match="Both head='5' and head_id=1 are given"):
        model.predict(head="5", relation=2, head_id=1)
    with pytest.raises(InputError, match="No entity is given"):
        model.neighbors()


def test_without_names_ids_are_names():
    named = rings()
    dataset = Dataset(named.train, named.valid, named.test, 12, 3)
    model = model_of(dataset)
    assert model.predict(head="3", relation="0") == model.predict(head=3, relation=0)
    assert model.predict(head=3, relation=0)[0].name.isdecimal()
    with pytest.raises(InputError, match="has no names"):
        model.predict(head="person 3", relation=0)


def test_scores_take_names_ids_and_arrays_alike():
    model = model_of(rings())
    by_name = model.score([("person 0", "next", "person 1"), ("person 2", "beside", "person 1")])
    by_id = model.score(np.array([[0, 0, 1], [2, 2, 1]]))
    plain = model.kge.score(torch.tensor([[0, 0, 1], [2, 2, 1]])).numpy()
    assert by_name.tolist() == by_id.tolist() == pytest.approx(plain.tolist(), rel=1e-6)
    assert model.score([]).shape == (0,)
    with pytest.raises(InputError, match="Row 0 has the tail id 12"):
        model.score(np.array([[0, 0, 12]]))


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
def test_neighbors_are_the_nearest_of_a_full_sort(metric):
    model = model_of(rings())
    table = model.entity_embeddings.astype(np.float64)
    if metric == "cosine":
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
    closeness = -np.linalg.norm(table - table[2], axis=1) if metric == "euclidean" else table @ table[2]
    expected = [i for i in np.argsort(-closeness).tolist() if i != 2]
    found = model.neighbors("person 2", 20, metric)
    assert [a.id for a in found] == expected
    assert [a.score for a in found] == pytest.approx(closeness[expected].tolist(), abs=1e-5)


def test_an_unknown_metric_is_a_sentence():
    with pytest.raises(ConfigError, match="give cosine, euclidean, dot"):
        model_of(rings()).neighbors("person 0", 3, "manhattan")


def test_a_model_of_nan_is_not_asked():
    model = model_of(rings())
    model.kge.entity[0] = torch.nan
    with pytest.raises(Diverged):
        model.predict(head_id=0, relation_id=0)


def test_a_saved_model_answers_the_same(tmp_path):
    model = model_of(rings(), "rotate")
    model.evaluation, model.history = {"split": "test"}, [{"mrr": 0.5}]
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m", device="cpu")
    assert again.predict(head_id=1, relation_id=0) == model.predict(head_id=1, relation_id=0)
    assert (again.config, again.evaluation, again.history) == (model.config, model.evaluation, model.history)
    assert again.dataset.fingerprint == model.dataset.fingerprint
    assert (again.entity_embeddings == model.entity_embeddings).all()
    with pytest.raises(InputError, match="already exists"):
        model.save(tmp_path / "m")


def test_a_model_folder_with_another_config_is_damaged(tmp_path):
    model_of(rings()).save(tmp_path / "m")
    record = (tmp_path / "m" / "model.json").read_text()
    (tmp_path / "m" / "model.json").write_text(record.replace('"optimizer"', '"optimiser"'))
    write_checksums(tmp_path / "m")
    with pytest.raises(FormatError, match="optimiser"):
        Model.load(tmp_path / "m", device="cpu")


def test_another_dataset_is_matched_by_names():
    own = rings()
    model = model_of(own)
    order = np.random.default_rng(1).permutation(12)
    back = np.argsort(order)
    from grash.data.vocabulary import Vocabulary

    def renumbered(triples):
        return np.ascontiguousarray(
            np.stack([back[triples[:, 0]], triples[:, 1], back[triples[:, 2]]], 1).astype(np.int32)
        )

    names = [f"person {i}" for i in order]
    other = Dataset(
        renumbered(own.train), renumbered(own.valid), renumbered(own.test), 12, 3,
        Vocabulary.from_names(names), own.relations, "renumbered",
    )  # fmt: skip
    for split in ("valid", "test"):
        assert model.evaluate(other, split=split).to_dict() == model.evaluate(split=split).to_dict()


def test_triples_that_the_model_was_trained_with_are_counted_and_told(caplog):
    own = rings()
    other = Dataset(
        own.valid, own.train[:7], np.concatenate([own.train[:4], own.test[:2]]), 12, 3, own.entities, own.relations
    )
    model = model_of(own)
    result = model.evaluate(other)
    assert result.n_trained == 4 == result.to_dict()["n_trained"]
    assert "4 of the 6 test triples" in caplog.text and "trained on them" in caplog.text
    assert model.evaluate(other, split="valid").n_trained == 7
    assert model.evaluate().n_trained == 0


def test_names_that_the_model_does_not_know_are_dropped_only_on_request():
    from grash.data.vocabulary import Vocabulary

    own = rings()
    names = [f"person {i}" for i in range(11)] + ["stranger"]
    other = Dataset(own.train, own.valid, own.test, 12, 3, Vocabulary.from_names(names), own.relations, "other")
    model = model_of(own)
    test = np.concatenate([own.test, np.array([[11, 0, 0]], np.int32)])
    other = Dataset(own.train, own.valid, test, 12, 3, other.entities, own.relations, "other")
    with pytest.raises(InputError, match="e.g. the entity 'stranger'"):
        model.evaluate(other)
    n_strange = int((test[:, [0, 2]] == 11).any(1).sum())
    result = model.evaluate(other, unseen="drop")
    assert (result.n_triples, result.n_unseen, result.n_triples_in_split) == (5 - n_strange, n_strange, 5)
    nameless = Dataset(own.train, own.valid, own.test, 12, 3)
    with pytest.raises(InputError, match="has no names"):
        model.evaluate(nameless)


def test_a_file_is_ranked_as_a_whole(tmp_path, caplog):
    own = rings()
    model = model_of(own)
    path = write_tsv(own, tmp_path / "new.tsv")
    n = sum(len(own.split(split)) for split in ("train", "valid", "test"))
    result = model.evaluate(path)
    assert (result.n_triples, result.n_triples_in_split, result.n_trained) == (n, n, len(own.train))
    assert grash.evaluate(model, str(path)).to_dict() == result.to_dict()
    caplog.clear()
    split = model.evaluate(grash.load_dataset(path))
    assert split.n_triples < n and "Only 2 of the 48 triples of new are ranked, those split off" in caplog.text
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test.txt").write_text("person 0\tnext\tperson 1\n" * 2)
    assert model.evaluate(tmp_path / "folder").n_triples == 2
    (tmp_path / "folder" / "train.txt").write_text("person 0\tnext\tperson 1\n")
    (tmp_path / "folder" / "test.txt").unlink()
    with pytest.raises(InputError, match="has no test file, only train.txt: give a file of triples"):
        model.evaluate(tmp_path / "folder")


@pytest.mark.parametrize("k", [2.5, 0, True, "3", None])
def test_a_count_that_is_none_is_refused(k):
    model = model_of(rings())
    with pytest.raises(InputError, match="is not valid: give a whole number, 1 or more"):
        model.predict(head="person 1", relation="next", k=k)
    with pytest.raises(InputError, match="is not valid: give a whole number, 1 or more"):
        model.neighbors("person 1", k=k)


def test_counts_and_ids_of_numpy_are_taken():
    model = model_of(rings())
    assert len(model.predict(head_id=np.int32(1), relation_id=np.int64(0), k=np.int64(3))) == 3


@pytest.mark.parametrize("row", [("person 1", "next"), ("a", "b", "c", "d"), "abc", 3])
def test_a_row_that_is_no_triple_is_named(row):
    model = model_of(rings())
    with pytest.raises(InputError, match=r"Row 1 is .*: three parts are needed, \(head, relation, tail\)"):
        model.score([("person 1", "next", "person 2"), row])
    with pytest.raises(InputError, match="Row 0 is .*three parts"):
        model.predict_many([row])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [((12, 0, -1), "Row 0 has the head id 12"), ((0, 3, -1), "Row 0 has the relation id 3"),
     ((-1, 0, 12), "Row 0 has the tail id 12"), ((-1, 0, -1), "Questions have the shape")],
)  # fmt: skip
@pytest.mark.parametrize("like_known", [False, True])
def test_questions_by_ids_that_do_not_exist_are_named(row, sentence, like_known):
    with pytest.raises(InputError, match=sentence):
        model_of(rings()).answer_arrays(np.array([row]), like_known=like_known)


def test_candidates_and_sides_that_do_not_exist_are_named():
    model = model_of(rings())
    model.calibration = some_calibration()
    with pytest.raises(InputError, match="no entity id 12"):
        model.answer_arrays(np.array([[0, 0, -1]]), allowed=np.array([12]))
    with pytest.raises(InputError, match=r"Candidates are several entities: give \['person 1'\]"):
        model.predict("person 1", "next", candidates="person 1")
    for ask in (model.score, model.probability):
        with pytest.raises(InputError, match="side='object' is unknown: give head or tail"):
            ask([("person 1", "next", "person 2")], side="object")


def test_a_truth_value_is_no_id():
    model = model_of(rings())
    with pytest.raises(InputError, match="True is no entity"):
        model.predict(head=True, relation="next")
    with pytest.raises(InputError, match="False is no relation"):
        model.predict(head="person 1", relation=False)


TYPED = [("Lima", "rdf:type", "City"), ("Rome", "rdf:type", "City"), ("Peru", "rdf:type", "Country"),
         ("Lima", "capital_of", "Peru"), ("Rome", "near", "Lima"), ("Oslo", "near", "Rome")]  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("new_only", [False, True])
def test_filtered_answers_are_the_answers_without_the_others(name, new_only):
    model = model_of(rings(), name, integers=True)
    asked = [("person 3", "next", None), (None, "two on", "person 5"), ("person 1", "next", None)]
    full = model.predict_many(asked, 12, new_only=new_only)
    among = [f"person {i}" for i in (7, 2, 9, 4)]
    found = model.predict_many(asked, 12, new_only=new_only, candidates=among)
    assert found == [[a for a in answers if a.name in among] for answers in full]
    liked = model.predict_many(asked, 3, new_only=new_only, like_known=True)
    assert liked == [model.predict(*q, k=3, new_only=new_only, like_known=True) for q in asked]  # one side at a time
    for (_, relation, tail), answers, chosen in zip(asked, full, liked):
        side = "head" if tail else "tail"
        seen = set(model.seen_entities(model.relation_id(relation), side).tolist())
        assert chosen == [a for a in answers if a.id in seen][:3]
    both = model.predict_many(asked, 12, candidates=np.array([9, 2]), like_known=True)
    assert all({a.id for a in answers} <= {2, 9} for answers in both)


def test_an_answer_type_selects_the_entities_with_this_type():
    graph = grash.from_triples(TYPED, valid=[], test=[])
    model = model_of(graph)
    assert {a.name for a in model.predict(head="Oslo", relation="near", answer_type="City")} == {"Lima", "Rome"}
    assert [a.name for a in model.predict("Oslo", "near", answer_type="Peru", type_relation="capital_of")] == ["Lima"]
    assert model.predict("Oslo", "near", answer_type="Country", candidates=["Lima"]) == []


def test_filters_that_make_no_sense_are_sentences():
    model = model_of(rings())
    with pytest.raises(InputError, match="no relation is called rdf:type"):
        model.predict("person 1", "next", answer_type="person 2")
    with pytest.raises(InputError, match="A type relation is given, but no answer type"):
        model.predict("person 1", "next", type_relation="next")
    with pytest.raises(InputError, match="A question for a relation has no candidates"):
        model.predict(head="person 1", tail="person 2", candidates=["person 3"])
    with pytest.raises(InputError, match="There is no entity id 12"):
        model.predict("person 1", "next", candidates=np.array([3, 12]))
    with pytest.raises(UnknownName, match="Did you mean 'person 1'"):
        model.predict("person 1", "next", candidates=["person1"])
    assert len(model.predict(head="person 1", tail="person 2", like_known=True)) == 3


@pytest.mark.parametrize("like_known", [False, True])
def test_more_answers_than_there_are_entities_are_all_of_them(like_known):
    model = model_of(rings(), integers=True)
    asked = [("person 3", "next", None), (None, "two on", "person 5")] * 5
    for options in ({}, {"new_only": True}):
        found = model.predict_many(asked, 10**30, like_known=like_known, **options)
        assert found == model.predict_many(asked, 12, like_known=like_known, **options)
    assert len(model.neighbors("person 3", 10**30)) == 11
