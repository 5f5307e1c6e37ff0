"""LibKGE's files: published GraSH searches load as they are, trials become settings, what is left out is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from grash.api.search import resolved_space
from grash.errors import ConfigError, InputError
from grash.interop.libkge import LibkgeSearch, flatten, libkge_search, read_libkge_config
from grash.search.named_spaces import space_of
from grash.search.space import make_space, read_yaml
from grash.training.config import make_config

from .libkge_files import EPOCHS, MODELS, published_search, selected_trial

TOY = """
job.type: search
dataset.name: toy
train.optimizer.default.type: Adagrad
train.max_epochs: 20
model: complex
search.type: grash_search
grash_search:
  eta: 4
  num_trials: 16
  search_budget: 12
  variant: combined
  host: 127.0.0.2
  port: None
  parameters:
    - {name: train.optimizer.default.args.lr, type: range, bounds: [0.0, 1.0]}
    - {name: train.optimizer.default.args.weight_decay, type: range, bounds: [1.0e-8, 1.0], log_scale: True}
    - {name: lookup_embedder.dim, type: range, bounds: [10, 50]}
"""


def written(folder: Path, content: Any) -> Path:
    path = folder / "search.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def read_libkge_search(path: Path) -> LibkgeSearch:
    return libkge_search(read_yaml(path), str(path))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dataset", EPOCHS)
def test_a_published_search_is_the_papers_space(model: str, dataset: str, tmp_path: Path) -> None:
    found = read_libkge_search(written(tmp_path, published_search(model, dataset)))
    paper = space_of("paper", model)
    assert {n: found.space.parameters[n] for n in found.space.searched} == {
        n: paper.parameters[n] for n in paper.searched
    }
    optimizer = "row_adagrad" if dataset == "freebase" else "adagrad"
    for row in paper.points(2, 30):
        ours, theirs = (make_config(space.configuration(row)) for space in (paper, found.space))
        assert theirs.changed(optimizer="adagrad") == ours
    assert found.space.parameters["optimizer"].values == (optimizer,)
    assert found.settings == {
        "n_trials": 64, "eta": 4, "budget": 3, "variant": "combined", "seed": 2, "negatives_floor": 0.01,
        "max_epochs": EPOCHS[dataset], "dataset": dataset, "model": model, "dim": 128,
    }  # fmt: skip


def test_what_is_left_out_is_listed_with_the_reason(tmp_path: Path) -> None:
    content = published_search("rotate", "freebase")
    content["lookup_embedder"]["normalize"] = {"p": 2}
    found = read_libkge_search(written(tmp_path, content))
    lines = dict(line.split(": ", 1) for line in found.ignored)
    assert len(lines) == len(found.ignored)
    for key in ("entity_ranking.*", "eval.*", "valid.*", "job.*", "search.*", "random_seed.*", "import"):
        assert key in lines, key
    assert "always kept" in lines["grash_search.keep_initialization"]
    assert lines["lookup_embedder.normalize.p"] == "2 has no counterpart in grash"
    assert lines["train.loss_arg"] == "this loss has no argument"
    used = ("train.batch_size", "grash_search.eta", "train.max_epochs", "model", "negative_sampling.shared")
    assert not [key for key in used if key in lines]


def test_every_key_is_used_or_listed(tmp_path: Path) -> None:
    content = flatten(published_search("complex", "yago3-10"))
    listed = [line.split(": ", 1)[0].removesuffix(".*") for line in libkge_search(content, "a.yaml").ignored]
    read = (
        "grash_search.", "dataset.name", "model", "train.", "lookup_embedder.dim", "lookup_embedder.regularize_args.",
        "negative_sampling.",
    )  # fmt: skip
    for key in content:
        assert key.startswith(read) or any(key == one or key.startswith(f"{one}.") for one in listed), key


def test_nested_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    content = published_search("transe", "wikidata5m", "graph")
    assert libkge_search(flatten(content), "a.yaml") == libkge_search(content, "a.yaml")
    space = resolved_space(written(tmp_path, content))
    assert make_space(space) == libkge_search(content, "a.yaml").space


def test_the_toy_search_loads_with_notes(tmp_path: Path) -> None:
    found = read_libkge_search(written(tmp_path, TOY))
    assert found.space.searched == ("lr", "dim")
    assert found.space.parameters["dim"].values == tuple(range(10, 51, 2))
    assert found.space.parameters["training"].values == ("kvsall",) and "negatives_head" not in found.space.parameters
    assert found.settings == {
        "n_trials": 16, "eta": 4, "budget": 12, "variant": "combined", "max_epochs": 20, "dataset": "toy",
        "model": "complex",
    }  # fmt: skip
    text = "\n".join(found.ignored)
    assert "weight_decay: it was searched and has no counterpart" in text
    assert "lr: its range starts at 0" in text and "dim: complex needs even numbers" in text


def test_one_number_of_negatives_for_both_slots_becomes_two_draws() -> None:
    content = published_search("complex", "yago3-10")
    del content["grash_search"]["parameters"][-1]
    found = libkge_search(content, "a.yaml")
    head, tail = (found.space.parameters[f"negatives_{side}"] for side in ("head", "tail"))
    assert (tail.low, tail.high) == (head.low, head.high) and "-1 means as many as s" in found.ignored[0]


def test_an_unweighted_penalty_is_doubled() -> None:
    content = published_search("complex", "yago3-10")
    content["lookup_embedder"]["regularize_args"]["weighted"] = False
    weight = libkge_search(content, "a.yaml").space.parameters["penalty_entity"]
    assert (weight.low, weight.high) == (2e-20, 0.2)


def test_a_selected_trial_becomes_settings(tmp_path: Path) -> None:
    config = read_libkge_config(written(tmp_path, selected_trial()))
    assert (config.model, config.dim, config.lr, config.optimizer) == (
        "rotate",
        128,
        0.06499562081250351,
        "row_adagrad",
    )
    assert (config.negatives_head, config.negatives_tail) == (811, 377)
    assert (config.penalty, config.penalty_entity, config.penalty_weighted) == ("l2", 2.851117109269539e-12, True)
    assert (config.dropout_entity, config.init, config.init_std) == (0.0, "normal", 0.01048932117101729)
    assert (config.epochs, config.valid_every, config.patience) == (10, 1, None)
    space_of("paper", "rotate").check({**config.model_dump(), "optimizer": "adagrad"})


def test_a_reciprocal_training_becomes_settings(tmp_path: Path) -> None:
    content = {
        "model": "reciprocal_relations_model",
        "reciprocal_relations_model.base_model.type": "complex",
        "train": {"type": "KvsAll", "loss": "bce", "loss_arg": 0.5, "lr_scheduler": "ReduceLROnPlateau"},
        "train.lr_scheduler_args": {"factor": 0.9, "patience": 3},
        "KvsAll.label_smoothing": -0.2,
        "lookup_embedder": {"regularize": "lp", "regularize_weight": 0.01, "regularize_args.p": 3},
    }
    config = read_libkge_config(written(tmp_path, content))
    assert (config.reciprocal, config.training, config.loss, config.offset) == (True, "kvsall", "bce", 0.5)
    assert (config.schedule, config.schedule_factor, config.schedule_patience) == ("plateau", 0.9, 3)
    assert (config.label_smoothing, config.batch_size, config.dim) == (0.0, 100, 100)
    assert (config.penalty, config.penalty_entity, config.penalty_relation) == ("l3", 0.02, 0.01)


def test_the_published_file_that_is_no_yaml_gets_a_sentence(tmp_path: Path) -> None:
    text = "import:\n- distributed_model\n dataset:\n  name: freebase\n"
    with pytest.raises(InputError, match="search.yaml cannot be read as YAML: .*line 3") as caught:
        read_libkge_search(written(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grash_search": None}, r"it has no `grash_search` section"),
        ({"grash_search": {"eta": 4}}, r"grash_search.parameters is empty"),
        ({"grash_search": {"parameters": [{"type": "range"}]}}, r"in grash_search.parameters has no name"),
        ({"model": "transh"}, r"model='transh' is not one of grash's models"),
        ({"train.loss": "se"}, r"train.loss='se' has no counterpart in grash: possible are 'kl'"),
        ({"negative_sampling.sampling_type": "batch"}, r"negative_sampling.sampling_type='batch' has no counterpart"),
    ],
)
def test_what_cannot_be_searched_here_gets_a_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    content = {**published_search("complex", "yago3-10"), **changes}
    content = {key: value for key, value in content.items() if value is not None}
    with pytest.raises(ConfigError, match=f"search.yaml: .*{sentence}"):
        read_libkge_search(written(tmp_path, content))


def test_a_key_that_is_searched_twice_gets_a_sentence(tmp_path: Path) -> None:
    content = published_search("complex", "yago3-10")
    content["grash_search"]["parameters"] *= 2
    with pytest.raises(ConfigError, match="search.yaml: train.optimizer_args.lr is in .* twice"):
        read_libkge_search(written(tmp_path, content))


@pytest.mark.parametrize("model", ["complex", "rotate", "transe"])
@pytest.mark.parametrize("variant", ["combined", "graph", "epoch"])
def test_a_published_search_is_planned_as_published(model: str, variant: str, tmp_path: Path) -> None:
    from grash.api.search import Search, settings_of_file

    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(published_search(model, "yago3-10", variant)))
    settings, _ = settings_of_file(file)
    search = Search("world", out=tmp_path / "run", preset=settings.pop("preset"), **settings)
    plan = search.plan(probe=False)
    assert [r.n_trials for r in plan.rounds] == [64, 16, 4]
    assert [r.plan.fidelity for r in plan.rounds] == [1 / 64, 1 / 16, 1 / 4]
    assert plan.billed <= plan.budget == 3 and search.settings.max_epochs == 400
    assert (
        search.settings.models == (model,) and search.settings.reduction == "k-core" and not search.settings.guard_rails
    )
