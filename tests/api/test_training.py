"""grash.train and its kin: the whole path in Python."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

import grash
from grash.api.training import configure, unused_folder
from grash.errors import ConfigError, InputError
from grash.training.checkpoint import checkpoint_folder
from small_graph import rings, write_tsv

QUICK = {"dim": 16, "epochs": 30, "batch_size": 16, "training": "1vsall", "valid_every": 10, "reciprocal": True}
LONG = {**QUICK, "epochs": 400, "valid_every": 150, "patience": None}  # some tenths of a second, so that it is watched


pytestmark = pytest.mark.usefixtures("one_thread")


def weights(model: grash.Model) -> tuple[bytes, bytes]:
    return model.entity_embeddings.tobytes(), model.relation_embeddings.tobytes()


def test_training_saves_evaluates_and_cleans_up(tmp_path):
    model = grash.train(rings(), out=tmp_path / "m", device="cpu", **QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert model.evaluation["both"]["mrr"] == grash.evaluate(tmp_path / "m", device="cpu").both.mrr
    assert model.history[-1]["epoch"] == 30
    assert weights(grash.load_model(tmp_path / "m", device="cpu")) == weights(model)
    assert model.predict(head="person 1", relation="next", k=1)[0].score == pytest.approx(
        max(a.score for a in model.predict(head="person 1", relation="next", k=12))
    )


def test_settings_come_from_records_mappings_files_and_keywords(tmp_path):
    (tmp_path / "c.yaml").write_text("model: distmult\nlr: 0.5\n")
    assert configure(tmp_path / "c.yaml", lr=0.25).lr == 0.25
    assert configure({"model": "transe"}, dim=10).model == "transe"
    assert configure(configure(dim=10), lr=1).dim == 10
    assert configure() == grash.TrainConfig()
    with pytest.raises(ConfigError, match="Did you mean epochs"):
        grash.train(rings(), epoch=3)


def test_an_occupied_folder_is_refused_before_the_training(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").touch()

    def never(progress):
        raise AssertionError("trained")

    with pytest.raises(InputError, match="already exists"):
        grash.train(rings(), out=tmp_path / "m", watch=never, **QUICK)
    with pytest.raises(InputError, match="is not a model folder"):
        grash.train(rings(), out=tmp_path / "m", watch=never, overwrite=True, **QUICK)


def test_a_source_can_be_given_by_path(tmp_path):
    path = write_tsv(rings(), tmp_path / "rings.tsv")
    model = grash.train(path, device="cpu", evaluate=False, **{**QUICK, "epochs": 1})
    assert model.dataset.n_entities == 12 and model.evaluation == {}


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, times):
    settings = {**LONG, "dropout_entity": 0.1}
    whole = grash.train(rings(), device="cpu", **settings)
    out = tmp_path / "m"
    for part in range(times):

        def press(progress):
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            grash.train(rings(), out=out, device="cpu", watch=press, **settings)
        assert checkpoint_folder(out).is_dir() and not out.exists(), part
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    rest = grash.train(rings(), out=out, device="cpu", **settings)
    assert weights(rest) == weights(whole)
    assert not checkpoint_folder(out).exists()


def test_the_default_folder_is_free_or_this_runs_own(tmp_path):
    dataset, config = rings(), configure(**LONG)
    assert unused_folder(dataset, config, parent=tmp_path) == tmp_path / "rings-complex"

    def press(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grash.train(dataset, config, out=tmp_path / "rings-complex", device="cpu", watch=press)
    assert unused_folder(dataset, config, parent=tmp_path) == tmp_path / "rings-complex"
    assert unused_folder(dataset, config.changed(lr=0.2), parent=tmp_path) == tmp_path / "rings-complex-2"
    (tmp_path / "rings-complex-2").mkdir()
    assert unused_folder(dataset, config.changed(lr=0.2), parent=tmp_path) == tmp_path / "rings-complex-3"


def test_a_dataset_without_valid_and_test_trains_too():
    named = rings()
    none = np.empty((0, 3), np.int32)
    model = grash.train(grash.Dataset(named.train, none, none, 12, 3), device="cpu", **{**QUICK, "epochs": 2})
    assert (model.history, model.evaluation) == ([], {})


@pytest.mark.parametrize("threads", [-1, 0, 2.5, True])
def test_a_wrong_number_of_threads_is_refused(threads):
    with pytest.raises(ConfigError, match="threads=.*: give a whole number from 1"):
        grash.train(rings(), threads=threads, **QUICK)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("setting", "need"),
    [
        ({"dim": 0}, "dim=0 is not valid: give 1 or more."),
        ({"dim": 2.5}, "dim=2.5 is not valid: give a whole number."),
        ({"dim": "x"}, "dim='x' is not valid: give a whole number."),
        ({"dim": None}, "dim=None is not valid: give a whole number."),
        ({"lr": 0}, "lr=0 is not valid: give a number greater than 0."),
        ({"lr": "x"}, "lr='x' is not valid: give a number."),
        ({"lr": [1]}, "lr=[1] is not valid: give a number."),
        ({"lr": float("nan")}, "lr=nan is not valid: give a number that is not infinite and not NaN."),
        ({"dim": float("inf")}, "dim=inf is not valid: give a number that is not infinite and not NaN."),
        ({"label_smoothing": 1}, "label_smoothing=1 is not valid: give a number less than 1."),
        ({"reciprocal": "x"}, "reciprocal='x' is not valid: give true or false."),
        ({"reciprocal": [1]}, "reciprocal=[1] is not valid: give true or false."),
        ({"norm": 3}, "norm=3 is not valid: give 1 or 2."),
        ({"model": 3}, "model=3 is not valid: give a word."),
    ],
)
def test_what_a_setting_needs_is_said_in_our_words(setting, need):
    with pytest.raises(ConfigError) as caught:
        configure(**setting)
    assert str(caught.value) == need


def test_describe_takes_any_source(tmp_path):
    write_tsv(rings(), tmp_path / "g.tsv")
    assert grash.describe(tmp_path / "g.tsv") == grash.describe(grash.load_dataset(str(tmp_path / "g.tsv")))
    with pytest.raises(InputError, match="nowhere"):
        grash.describe(tmp_path / "nowhere")
