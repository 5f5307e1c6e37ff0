"""Exported configurations: PyKEEN trains them, LibKGE's words come back as the same settings."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import yaml

from grash.data.catalog import CATALOG
from grash.errors import ConfigError, InputError
from grash.interop import libkge, pykeen
from grash.interop.export import export_config, find_config
from grash.interop.libkge import config_to_libkge, flatten, libkge_dataset, read_libkge_config
from grash.interop.pykeen import config_to_pykeen, pykeen_dataset
from grash.models import MODELS
from grash.search.run_folder import SCHEMA, VERSION
from grash.training.config import TrainConfig, make_config
from grash.yaml_files import write_yaml
from small_graph import grash, model_of, rings, write_tsv

TINY = {"dim": 4, "batch_size": 16, "negatives_head": 3, "negatives_tail": 2, "epochs": 1, "valid_every": 1}


def config_of(**settings: Any) -> TrainConfig:
    return make_config({**TINY, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The graph of rings as PyKEEN reads it."""
    place = tmp_path_factory.mktemp("graph")
    for split in ("train", "valid", "test"):
        lines = ["\t".join(map(str, row)) for row in getattr(rings(), split).tolist()]
        (place / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return str(place)


def trained_by_pykeen(config: TrainConfig, folder: str) -> Any:
    from pykeen.pipeline import pipeline_from_config

    content, _ = config_to_pykeen(config, folder)
    content = json.loads(json.dumps(content))
    content["pipeline"]["training_kwargs"]["use_tqdm"] = False
    content["pipeline"]["evaluation_kwargs"] = {"use_tqdm": False, "batch_size": 4}
    logging.disable(logging.WARNING)
    try:
        return pipeline_from_config(content, device="cpu")
    finally:
        logging.disable(logging.NOTSET)


PYKEEN_CONFIGS = {
    **{name: config_of(model=name) for name in pykeen._MODELS},
    "distmult with everything": config_of(
        model="distmult", init="uniform", penalty="n3", penalty_entity=0.1, penalty_relation=0.2, dropout_entity=0.1
    ),
    "cp with numbers": config_of(model="cp", init="normal", penalty="l2", penalty_entity=0.1),
    "complex, n3": config_of(penalty="n3", penalty_entity=0.1, optimizer="adam", schedule="cosine"),
    "rotate, l3": config_of(model="rotate", norm=2, penalty="l3", penalty_entity=0.1, loss="self_adversarial"),
    "transe, margin": config_of(model="transe", norm=2, loss="margin", schedule="linear", optimizer="sgd"),
    "one side, filtered": config_of(negatives_head=0, negatives_filtered=True, loss="bce", patience=None),
    "1vsall": config_of(training="1vsall", reciprocal=True, schedule="plateau"),
    "kvsall": config_of(training="kvsall", reciprocal=True, label_smoothing=0.1),
    "kvsall without reciprocals": config_of(training="kvsall", loss="bce"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyKEEN warns on import and in use
@pytest.mark.parametrize("name", PYKEEN_CONFIGS)
def test_pykeen_loads_the_file_and_trains(name, folder):
    from pykeen.training.lcwa import LCWATrainingLoop as LCWA
    from pykeen.training.lcwa import SymmetricLCWATrainingLoop as SymmetricLCWA
    from pykeen.training.slcwa import SLCWATrainingLoop as SLCWA

    config = PYKEEN_CONFIGS[name]
    result = trained_by_pykeen(config, folder)
    assert len(result.losses) == 1
    entity = result.model.entity_representations[0]._embeddings.weight
    assert entity.numel() == 12 * (config.dim // 2 if config.model == "cp" else config.dim)
    assert isinstance(result.training_loop, {"1vsall": SymmetricLCWA, "kvsall": LCWA}.get(config.training, SLCWA))


@pytest.mark.filterwarnings("ignore")
def test_pykeen_gets_our_penalty_law_and_dropout(folder):
    model = trained_by_pykeen(PYKEEN_CONFIGS["distmult with everything"], folder).model
    entity, relation = model.entity_representations[0], model.relation_representations[0]
    assert float(entity.regularizer.weight) == pytest.approx(0.1 / 3) and entity.regularizer.p == 3
    assert float(relation.regularizer.weight) == pytest.approx(0.2 / 3)
    assert entity.dropout.p == 0.1 and entity.constrainer is None
    assert model.loss.__class__.__name__ == "CrossEntropyLoss"


def test_no_penalty_stays_none_in_pykeen(folder):
    content, _ = config_to_pykeen(config_of(), folder)
    assert content["pipeline"]["model_kwargs"]["regularizer"] == "no"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"penalty": "dura", "penalty_entity": 0.1}, "penalty: dura"),
        ({"penalty": "l2", "penalty_entity": 0.1, "penalty_weighted": False}, "unweighted l2"),
        ({"penalty": "l2", "penalty_entity": 0.1, "penalty_relation": 0.3}, "penalty_relation: 0.3"),
        ({"model": "rotate"}, "norm: "),
        ({"init": "uniform"}, "init: uniform (a -0.1, b 0.1)"),
        ({"dropout_relation": 0.25}, "relations 0.25"),
        ({"schedule": "plateau"}, "schedule: plateau"),
        ({"warmup_epochs": 2, "schedule": "warmup"}, "warmup_epochs: 2"),
        ({"optimizer": "lazy_adam"}, "optimizer: lazy_adam"),
        ({"loss": "bce", "offset": 3.0}, "offset: 3"),
        ({"epochs": 2.37}, "epochs: 2.37 is rounded up to 3"),
        ({"valid_every": 0.5}, "valid_every: 0.5 is rounded to 1"),
        ({"patience": None}, "patience: "),
        ({"relation_prediction": 0.5}, "relation_prediction: 0.5"),
        ({"negatives_sampling": "frequency"}, "negatives_sampling: frequency"),
        ({"negatives_shared": True}, "negatives_shared: "),
        ({"precision": "tf32"}, "precision: tf32"),
        ({"storage": "bf16"}, "storage: bf16"),
    ],
)
def test_what_pykeen_cannot_say_is_listed(settings, said):
    content, left_out = config_to_pykeen(config_of(**settings), "nations")
    assert any(said in line for line in left_out), left_out
    assert content["metadata"]["not_carried_over"] == left_out and content["pipeline"]["dataset"] == "nations"


def test_a_model_that_the_other_tool_has_not_is_refused():
    for name in MODELS.keys() - pykeen._MODELS.keys():
        said = f"model={name} cannot be exported as a configuration of PyKEEN, only complex"
        with pytest.raises(ConfigError, match=said):
            config_to_pykeen(config_of(model=name, dim=8), "nations")
    for name in ("quate", "mure", "pairre", "tucker"):
        with pytest.raises(ConfigError, match=f"model={name} cannot be exported as a configuration of LibKGE"):
            config_to_libkge(config_of(model=name, dim=8), "mykg")


def test_a_configuration_that_pykeen_shares_leaves_little_out():
    config = config_of(
        model="distmult", training="1vsall", reciprocal=True, init="normal", optimizer="adam", loss="softmax"
    )
    assert config_to_pykeen(config, "nations")[1] == []


LIBKGE_CONFIGS = {
    **{name: config_of(model=name, dim=8) for name in libkge._MODELS},
    "conve with dropout": config_of(model="conve", dim=8, dropout_features=0.2, dropout_query=0.3, training="1vsall"),
    "reciprocal, plateau": config_of(reciprocal=True, schedule="plateau", schedule_factor=0.7, schedule_patience=3),
    "n3": config_of(penalty="n3", penalty_entity=0.1, penalty_relation=0.2, dropout_entity=0.1, dropout_relation=0.3),
    "unweighted": config_of(penalty="l3", penalty_entity=0.1, penalty_relation=0.2, penalty_weighted=False),
    "uniform": config_of(init="uniform", init_low=-0.4, init_high=1.0, patience=None),
    "normal": config_of(init="normal", init_std=0.3, optimizer="lazy_adam", lr=0.003, warmup_epochs=4),
    "own negatives": config_of(negatives_shared=False, negatives_replacement=True, negatives_sampling="frequency"),
    "filtered": config_of(negatives_filtered=True, negatives_head=0),
    "bce": config_of(model="transe", norm=2, loss="bce", offset=9.0, optimizer="adam"),
    "margin": config_of(model="rotate", loss="margin", margin=2.0, optimizer="sgd"),
    "1vsall": config_of(training="1vsall", optimizer="adam"),
    "kvsall": config_of(training="kvsall", label_smoothing=0.1, reciprocal=True),
}


@pytest.mark.parametrize("name", LIBKGE_CONFIGS)
def test_libkge_words_come_back_as_the_same_settings(name, tmp_path):
    config = LIBKGE_CONFIGS[name]
    text, left_out = config_to_libkge(config, "mykg")
    (tmp_path / "config.yaml").write_text(text)
    back = read_libkge_config(tmp_path / "config.yaml")
    skipped = {"seed", "variation"}
    if config.training != "negative_sampling":
        skipped |= {field for field in TrainConfig.model_fields if field.startswith("negatives_")}
    skipped |= {"penalty_weighted"} if config.penalty == "none" else set()  # what does not count is not written
    skipped |= {"init_std"} if config.init != "normal" else set()
    skipped |= {"init_low", "init_high"} if config.init != "uniform" else set()
    found, wanted = (c.model_dump(exclude=skipped) for c in (back, config))
    assert found == wanted
    assert left_out == []


def test_libkge_has_its_keys():
    text, _ = config_to_libkge(config_of(reciprocal=True, seed=7), "mykg")
    keys = flatten(yaml.safe_load(text))
    assert keys["job.type"] == "train" and keys["dataset.name"] == "mykg" and keys["random_seed.default"] == 7
    assert keys["model"] == "reciprocal_relations_model" and keys["import"] == ["complex"]
    assert keys["train.optimizer.default.type"] == "Adagrad" and keys["lookup_embedder.sparse"] is True
    assert keys["negative_sampling.num_samples.p"] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"penalty": "dura", "penalty_entity": 0.1}, "penalty: dura"),
        ({"optimizer": "row_adagrad"}, "optimizer: row_adagrad"),
        ({"optimizer": "lazy_adam", "training": "1vsall"}, "Adam is used"),
        ({"schedule": "linear"}, "schedule: linear"),
        ({"negatives_shared": False}, "negatives_replacement: "),
        ({"epochs": 2.37}, "epochs: 2.37 is rounded up to 3"),
        ({"relation_prediction": 0.5}, "relation_prediction: 0.5"),
        ({"loss": "self_adversarial"}, "half of ours"),
        ({"loss": "margin", "training": "1vsall"}, "does not support margin_ranking with 1vsAll"),
        ({"precision": "tf32"}, "precision: tf32"),
        ({"storage": "bf16"}, "storage: bf16"),
    ],
)
def test_what_libkge_cannot_say_is_listed_at_the_head_of_its_file(settings, said):
    text, left_out = config_to_libkge(config_of(**settings), "mykg")
    assert any(said in line for line in left_out), left_out
    assert all(f"# not carried over: {line}\n" in text for line in left_out)


def test_a_file_is_not_overwritten_unasked(tmp_path):
    path, _ = export_config(config_of(), tmp_path, "pykeen", dataset="nations")
    with pytest.raises(InputError, match="already exists"):
        export_config(config_of(), tmp_path, "pykeen", dataset="nations")
    export_config(config_of(seed=1), tmp_path, "pykeen", dataset="nations", overwrite=True)
    assert json.loads(path.read_text())["pipeline"]["random_seed"] == 1
    with pytest.raises(ConfigError, match="give pykeen or libkge"):
        export_config(config_of(), tmp_path, "openke", dataset="nations")


@pytest.mark.filterwarnings("ignore")
def test_every_graph_that_is_exported_as_pykeens_is_known_there():
    from pykeen.datasets import dataset_resolver

    for name in CATALOG:
        found, advice = pykeen_dataset(name, "SPLITS")
        if advice is None or "has no dataset" not in advice:
            dataset_resolver.lookup(found)  # raises KeyError
            assert config_to_pykeen(config_of(), name)[0]["pipeline"]["dataset"] == found
        else:
            with pytest.raises(KeyError):
                dataset_resolver.lookup(found)
            assert "`SPLITS`" in advice
    known = {name: pykeen_dataset(name, "")[0] for name in ("codex-s", "kinship", "ogbl-wikikg2", "FB15k-237")}
    assert list(known.values()) == ["CoDExSmall", "Kinships", "OGBWikiKG2", "fb15k-237"]
    assert "makes other splits of hetionet" in str(pykeen_dataset("hetionet", "")[1])


def test_libkge_is_told_what_it_needs_of_a_graph_that_it_does_not_fetch():
    assert libkge_dataset("wn18rr", "") == ("wnrr", None) and libkge_dataset("fb15k-237", "") == ("fb15k-237", None)
    for name in ("rings", "hetionet", "wikidata5m"):  # LibKGE's wikidata5m is another
        found, advice = libkge_dataset(name, "SPLITS")
        assert found == name and advice is not None
        assert "dataset.yaml, train.del" in advice and "`SPLITS`" in advice and "preprocess_default.py" in advice


def test_a_model_exports_its_configuration_as_the_command_does(tmp_path, caplog):
    model = model_of(rings())
    model.save(tmp_path / "m")
    for tool, file in (("pykeen", "pykeen.json"), ("libkge", "libkge.yaml")):
        caplog.clear()
        assert model.export(tmp_path / "python", tool) == [tmp_path / "python" / file]
        ran = grash("export", tmp_path / "m", "-o", tmp_path / "command", "--format", tool)
        assert ran.code == 0
        assert (tmp_path / "python" / file).read_bytes() == (tmp_path / "command" / file).read_bytes()
        assert [r.getMessage() for r in caplog.records][:-1] == ran.err.splitlines()[:-1]
        assert 'model.export("FOLDER", "splits")' in caplog.records[-1].getMessage()
        assert "--format splits -o FOLDER" in ran.err.splitlines()[-1]
    (path,) = model.export(tmp_path / "other", "pykeen", dataset="codex-s")
    assert json.loads(path.read_text())["pipeline"]["dataset"] == "CoDExSmall"
    with pytest.raises(ConfigError, match="is for the formats pykeen and libkge"):
        model.export(tmp_path / "splits", "splits", dataset="codex-s")


def test_splits_are_written_of_a_run_without_a_model_and_of_any_graph(tmp_path):
    rings().save(tmp_path / "run" / "dataset")
    record = {"name": "rings", "source": "", "folder": "dataset", "fingerprint": rings().fingerprint}
    content = {"schema": SCHEMA, "version": VERSION, "dataset": record, "settings": {}}
    write_yaml(tmp_path / "run" / "search.yaml", content)
    (tmp_path / "run" / "best.yaml").write_text(yaml.safe_dump(config_of().model_dump()))
    model_of(rings()).save(tmp_path / "m")
    advised = grash("export", tmp_path / "run", "-o", tmp_path / "p", "--format", "pykeen").err
    assert f"grash export {tmp_path / 'run'} --format splits -o FOLDER" in advised
    wanted = None
    for number, source in enumerate((tmp_path / "m", tmp_path / "run", tmp_path / "run" / "dataset")):
        ran = grash("export", source, "--format", "splits", "-o", tmp_path / f"s{number}")
        assert ran.code == 0, ran.err
        files = {p.name: p.read_text() for p in (tmp_path / f"s{number}").iterdir()}
        wanted = wanted or files
        assert set(files) == {"train.txt", "valid.txt", "test.txt"} and files == wanted
    write_tsv(rings(), tmp_path / "rings.tsv")
    ran = grash("export", tmp_path / "rings.tsv", "--format", "splits", "-o", tmp_path / "s")
    assert ran.code == 0 and len(ran.out.splitlines()) == 3
    lines = [line for p in (tmp_path / "s").iterdir() for line in p.read_text().splitlines()]
    assert sorted(lines) == sorted((tmp_path / "rings.tsv").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pykeen_loads_the_file_from_any_folder(tmp_path, monkeypatch):
    from pykeen.pipeline import pipeline_from_path

    model_of(rings()).save(tmp_path / "m")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert grash("export", "m", "--format", "splits", "-o", "splits").code == 0
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config_of(epochs=1).model_dump()))
    assert grash("export", "c.yaml", "--format", "pykeen", "-o", "p", "--dataset", "splits").code == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    logging.disable(logging.WARNING)
    try:
        result = pipeline_from_path(tmp_path / "p" / "pykeen.json", device="cpu")
    finally:
        logging.disable(logging.NOTSET)
    assert set(result.training.entity_to_id) == {f"person {i}" for i in range(12)}
    ran = grash("export", "../c.yaml", "--format", "pykeen", "-o", "q", "--dataset", "../not/here")
    assert ran.code == 2 and "There is no folder ../not/here" in ran.err
    (tmp_path / "splits" / "valid.txt").unlink()
    ran = grash("export", "../c.yaml", "--format", "pykeen", "-o", "q", "--dataset", "../splits")
    assert ran.code == 2 and "valid.txt is missing, which PyKEEN reads" in ran.err


def test_a_run_folder_gives_its_winner(tmp_path):
    with pytest.raises(InputError, match="has no configuration"):
        find_config(tmp_path)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(config_of().model_dump()))
    assert find_config(tmp_path) == (config_of(), None)
    (tmp_path / "search.yaml").write_text("dataset: {name: rings}\n")
    assert find_config(tmp_path) == (config_of(), "rings")


def test_the_command_exports_configurations(tmp_path):
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(config_of(epochs=2.5).model_dump()))
    done = grash("export", tmp_path / "best.yaml", "-o", tmp_path / "out", "--format", "libkge", "--dataset", "mykg")
    assert done.code == 0 and done.out.strip() == str(tmp_path / "out" / "libkge.yaml")
    assert "epochs: 2.5 is rounded up to 3" in done.err
    assert yaml.safe_load((tmp_path / "out" / "libkge.yaml").read_text())["dataset.name"] == "mykg"
    done = grash("export", tmp_path / "best.yaml", "-o", tmp_path / "other", "--format", "pykeen")
    assert done.code != 0 and "--dataset" in done.err
