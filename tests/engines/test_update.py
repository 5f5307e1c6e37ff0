"""Updates of models: what stays, what moves, how new rows start."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import grash
from grash.data.growth import grow
from grash.engines import update
from grash.engines.update import UpdateSettings, fill_new_rows
from grash.errors import ConfigError
from grash.evaluation.calibration import calibrate
from grash.models import MODELS, model_class
from grash.models.autograd import AutogradModel
from grash.training.config import make_config
from grash.training.initial import initial_model

NEW = [
    ("Atlantis", "located_in", "Portugal"),
    ("Atlantis", "twinned_with", "Lisbon"),
    ("Lisbon", "twinned_with", "Porto"),
]


@pytest.fixture(scope="module")
def trained():
    return grash.train("world", model="complex", dim=32, epochs=6, valid_every=3, reciprocal=True, calibrate=False)


@pytest.fixture(scope="module")
def added():
    return grash.from_triples(NEW, n_valid=0, n_test=0, name="new")


def test_an_update_keeps_names_and_split_and_improves_the_model(trained, added):
    before = trained.entity_embeddings.copy()
    model, report = trained.update(added)
    assert np.array_equal(trained.entity_embeddings, before)
    assert model.dataset.entities.name(5) == trained.dataset.entities.name(5)
    assert np.array_equal(model.dataset.test, trained.dataset.test)
    assert model.evaluation["both"]["mrr"] > trained.evaluation["both"]["mrr"] - 0.02
    assert report.diff.n_new_entities == 1 and report.diff.n_new_relations == 1
    assert report.changes[-1].what == "new triples, now trained on, with new names"
    assert report.optimizer_state == "rebuilt" and 0 < report.entity_drift.mean < 0.5
    assert model.calibration is not None
    assert model.predict(head="Atlantis", relation="located_in", k=3)
    assert "update" in model.history[-1] and "update" not in model.history[0]


def test_frozen_rows_are_the_same_bit_for_bit(trained, added):
    model, report = trained.update(added, freeze=True, epochs=20)
    n = trained.dataset.n_entities
    assert np.array_equal(model.entity_embeddings[:n], trained.entity_embeddings)
    old, new = trained.dataset.n_relations, model.dataset.n_relations
    kept = [*range(old), *range(new, new + old)]
    assert np.array_equal(model.relation_embeddings[kept], trained.relation_embeddings)
    assert report.entity_drift.n_moved == report.relation_drift.n_moved == 0
    ranked = [a.name for a in model.predict(head="Atlantis", relation="located_in", k=10)]
    assert "Portugal" in ranked


def test_frozen_adam_becomes_adagrad():
    graph = grash.from_triples(NEW[1:] * 1 + [("Porto", "twinned_with", "Faro")], n_valid=0, n_test=0)
    model = grash.train(graph, model="rotate", dim=4, epochs=2, optimizer="adam", training="1vsall", lr=0.01)
    grown, report = model.update(grash.from_triples(NEW[:1], n_valid=0, n_test=0), freeze=True, epochs=2)
    assert report.entity_drift.n_moved == report.relation_drift.n_moved == 0 and report.positives > 0
    assert grown.config.optimizer == "adam"


def test_no_epochs_train_nothing(trained, added):
    _, report = trained.update(added, freeze=True)
    assert report.positives == 0 and report.entity_drift.n_moved == 0


def test_half_an_epoch_rebuilds_about_the_same_optimizer_state(trained, monkeypatch):
    config = trained.config.changed(batch_size=32)
    assert update._rebuilt_epochs(config, trained.dataset) == 0.5
    half = update._rebuilt_state(trained.kge, trained.dataset, config)
    monkeypatch.setattr(update, "_REBUILT", 1.0)
    whole = update._rebuilt_state(trained.kge, trained.dataset, config)
    for name, squares in whole.items():
        assert float(half[name].sum()) == pytest.approx(float(squares.sum()), rel=0.1)


def test_a_small_graph_rebuilds_the_optimizer_state_with_a_whole_epoch(trained):
    few = trained.config.changed(batch_size=len(trained.dataset.train))
    assert update._rebuilt_epochs(few, trained.dataset) == 1.0


def test_few_new_triples_move_old_rows_less_than_many(trained, added, monkeypatch):
    growth = grow(trained.dataset, added)
    share = len(growth.added) / len(growth.dataset.train)
    assert update._epochs_kept(growth, 6.0) == pytest.approx(6.0 ** (1 - share / update._MANY_NEW))
    few, report = trained.update(added)
    monkeypatch.setattr(update, "_MANY_NEW", share)  # what was added is many then
    assert update._epochs_kept(growth, 6.0) == 1.0
    many, moved = trained.update(added)
    assert report.entity_drift.mean < moved.entity_drift.mean
    assert few.evaluation["both"]["mrr"] > many.evaluation["both"]["mrr"] - 0.01
    removed = grow(trained.dataset, removed=grash.from_triples(name_triples(trained.dataset, 500), n_valid=0, n_test=0))
    assert update._epochs_kept(removed, 6.0) == 1.0


def name_triples(dataset, n):
    e, r = dataset.entities, dataset.relations
    return [(e.name(a), r.name(b), e.name(c)) for a, b, c in dataset.train[:n].tolist()]


def test_an_update_validates_on_a_sample_and_keeps_the_temperature(trained, added, monkeypatch):
    model = copy.copy(trained)
    model.calibration = replace(calibrate(model.kge, model.dataset), temperature=2.5)
    every, _ = model.update(added, epochs=1)
    assert every.calibration.temperature == 2.5
    assert every.calibration.n_questions <= 2 * update.CALIBRATED
    monkeypatch.setattr(update, "_VALID", 5)
    monkeypatch.setattr(update, "_SCORES", 0)
    few, _ = model.update(added, epochs=1)
    assert few.history[-1]["mrr"] != every.history[-1]["mrr"]
    assert len(few.history) == len(every.history)


def test_triples_can_be_removed(trained):
    train = trained.dataset
    first = [
        tuple(names.name(int(i)) for names, i in zip((train.entities, train.relations, train.entities), train.train[0]))
    ]
    model, report = trained.update(removed=first, epochs=1)
    assert report.diff.n_removed == 1 and len(model.dataset.train) == len(train.train) - 1


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("name", ["complex", "cp", "distmult", "rescal", "rotate", "transe"])
def test_a_new_row_starts_where_its_triples_point_at(name, reciprocal):
    generator = np.random.default_rng(0)
    old = grash.from_triples([(f"e{i}", f"r{i % 2}", f"e{(i + 1) % 30}") for i in range(30)], n_valid=0, n_test=0)
    growth = grow(old, grash.from_triples([("new", "r0", "e3"), ("e4", "r2", "e5")], n_valid=0, n_test=0))
    config = make_config({"model": name, "dim": 8, "reciprocal": reciprocal, "init": "normal", "init_std": 0.5})
    model = initial_model(config, growth.dataset.n_entities, growth.dataset.n_relations)
    assert isinstance(model, model_class(name)) and generator is not None
    before = model.entity.clone(), model.relation.clone()
    fill_new_rows(model, growth, "triples")
    n = old.n_entities
    assert torch.equal(model.entity[:n], before[0][:n]) and torch.equal(model.relation[0], before[1][0])
    new, e3, r0 = n, growth.dataset.entities.id("e3"), growth.dataset.relations.id("r0")
    if model.pair == "dot":  # no other direction scores higher
        model.entity.div_(model.candidate(model.entity, "tail" if reciprocal else "head").norm(dim=1, keepdim=True))
    scores = model.score_heads(torch.tensor([r0]), torch.tensor([e3]))[0]
    assert scores[new] >= scores[:n].max() - 1e-5
    e4, r2, e5 = growth.dataset.entities.id("e4"), growth.dataset.relations.id("r2"), growth.dataset.entities.id("e5")
    found = model.score(torch.tensor([[e4, r2, e5]]))
    model.relation.copy_(before[1])
    assert found > model.score(torch.tensor([[e4, r2, e5]]))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"epochs": -1.0}, "epochs=-1"), ({"replay": -2.0}, "replay=-2"), ({"new_rows": "zero"}, "new_rows='zero'")],
)
def test_wrong_settings_are_sentences(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        UpdateSettings(**given)


def test_replay_needs_triples_one_by_one(added):
    model = grash.train("world", model="distmult", dim=4, epochs=1, training="kvsall", valid_every=1)
    with pytest.raises(ConfigError, match="leave out replay"):
        model.update(added, replay=1)


@pytest.mark.parametrize("epochs", [None, 1])
def test_a_model_of_kvsall_can_be_frozen(added, epochs):
    model = grash.train("world", model="distmult", dim=4, epochs=1, training="kvsall", valid_every=1, calibrate=False)
    grown, report = model.update(added, freeze=True, epochs=epochs, evaluate=False)
    assert report.n_examples == (0 if epochs is None else len(grown.dataset.train))
    assert report.entity_drift.n_moved == report.relation_drift.n_moved == 0


@pytest.mark.slow
def test_before_and_after_are_of_the_same_triples(trained):
    known = [("Lisbon", "located_in", "Peru"), ("Porto", "located_in", "Peru")]
    changes = []
    for rows in (known, [*known, *NEW]):
        new = grash.from_triples(rows, n_valid=0, n_test=0)
        _, report = trained.update(new, epochs=0, freeze=True, evaluate=False)
        changes.append({c.what: (c.n, c.before, c.after) for c in report.changes})
    what = "new triples"  # nothing was trained
    n, before, after = changes[1][what]
    assert n == 2 and before == pytest.approx(changes[0][what][1]) and after == pytest.approx(before, rel=0.05)
    assert changes[1][f"{what}, with new names"][:2] == (3, None)
    assert f"{what}, with new names" not in changes[0]


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if issubclass(cls, AutogradModel)])
def test_models_with_weights_are_updated_too(name):
    graph = grash.from_triples([(f"e{i}", f"r{i % 2}", f"e{(i + 1) % 30}") for i in range(30)], n_valid=0, n_test=0)
    model = grash.train(graph, model=name, dim=8, epochs=2, training="1vsall", lr=0.01, reciprocal=True)
    new = grash.from_triples([("new", "r0", "e3"), ("e4", "r2", "e5")], n_valid=0, n_test=0)
    for frozen in (False, True):
        grown, report = model.update(new, freeze=frozen, epochs=2)
        assert grown.dataset.n_entities == 31 and (report.entity_drift.n_moved == 0) == frozen
        for weight, tensor in model.kge.weights.items():
            assert torch.equal(grown.kge.weights[weight], tensor) or not frozen
