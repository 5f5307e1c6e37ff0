"""Settings: unknown names get suggestions, contradictions and bad values get sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import ConfigError, InputError, UnknownName
from grash.training.config import TrainConfig, make_config, read_config


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"learningrate": 0.1}, r"'learningrate' is not a setting"),
        ({"epoch": 3}, r"'epoch' is not a setting. Did you mean epochs"),
        ({"batchsize": 3}, r"Did you mean batch_size"),
        ({"zzzz": 3}, r"'zzzz' is not a setting. `grash settings` lists them all"),
        ({3: 3}, r"'3' is not a setting"),
        ({"lr": 0}, r"lr=0 is not valid: .*greater than 0"),
        ({"lr": "fast"}, r"lr='fast' is not valid"),
        ({"lr": float("nan")}, r"lr=nan is not valid"),
        ({"epochs": float("inf")}, r"epochs=inf is not valid"),
        ({"offset": float("nan")}, r"offset=nan is not valid"),
        ({"dropout_entity": 1.0}, r"dropout_entity=1.0 is not valid: .*less than 1"),
        ({"norm": 3}, r"norm=3 is not valid"),
        ({"optimizer": "adamw"}, r"optimizer='adamw' is not valid: .*'adagrad'"),
        ({"patience": 0}, r"patience=0 is not valid"),
        ({"seed": -1}, r"seed=-1 is not valid"),
        ({"batch_size": 2.5}, r"batch_size=2.5 is not valid"),
        ({"negatives_head": 0, "negatives_tail": 0}, r"leave nothing to learn from"),
        ({"training": "kvsall", "loss": "margin"}, r"loss=margin does not work with training=kvsall"),
        ({"training": "kvsall", "loss": "self_adversarial"}, r"give softmax or bce"),
        (
            {"training": "kvsall", "relation_prediction": 0.5},
            r"relation_prediction=0.5 does not work with training=kvsall",
        ),
        ({"training": "kvsall", "penalty": "dura"}, r"penalty=dura does not work with training=kvsall"),
        ({"label_smoothing": 0.1}, r"label_smoothing=0.1 needs training=kvsall"),
        ({"training": "1vsall", "negatives_filtered": True}, r"needs training=negative_sampling"),
        ({"init": "uniform", "init_low": 1, "init_high": 1}, r"init_low=1.0 must be less than init_high=1.0"),
        ({"penalty": "dura", "model": "rotate"}, r"penalty=dura is defined for dot-product models, not for rotate"),
        ({"penalty": "dura", "penalty_weighted": False}, r"needs penalty_weighted=true"),
        ({"storage": "bf16", "optimizer": "adam"}, r"storage=bf16 does not work with optimizer=adam"),
        ({"storage": "fp16"}, r"storage='fp16' is not valid: give 'float32' or 'bf16'"),
        ({"schedule": "warmup"}, r"schedule=warmup needs warmup_epochs above 0"),
        ({"dim": 7}, r"dim=7 is not possible for complex"),
    ],
)
def test_a_wrong_setting_gets_a_sentence(values: dict[Any, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_config(values)


def test_an_unknown_model_gets_suggestions() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'rotate'") as caught:
        make_config({"model": "rotat"})
    assert caught.value.suggestions[0] == "rotate"


def test_settings_are_frozen_equal_by_value_and_json() -> None:
    config = make_config({"dim": 64, "lr": "1e-3"})
    assert config.lr == 0.001 and config == make_config(config.model_dump())
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(Exception, match="frozen"):
        config.dim = 3  # type: ignore[misc]


def test_changes_are_validated_again() -> None:
    config = make_config({"model": "transe", "dim": 5})
    assert config.changed(dim=3).dim == 3
    with pytest.raises(ConfigError, match="dim=5 is not possible for complex"):
        config.changed(model="complex")
    with pytest.raises(ConfigError, match="not a setting"):
        config.changed(dims=3)


def test_every_setting_has_a_description() -> None:
    for name, field in TrainConfig.model_fields.items():
        assert field.description and field.description.endswith("."), name


def test_a_yaml_file_becomes_settings(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model: rotate\ntraining: negative_sampling\nlr: 1e-2\nepochs: 2.37\n", encoding="utf-8")
    config = read_config(path)
    assert (config.model, config.lr, config.epochs) == ("rotate", 0.01, 2.37)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"model: [", r"train.yaml cannot be read as YAML"),
        (b"\xff\xfe\xff", r"train.yaml cannot be read as YAML"),
        (b"", r"train.yaml must hold `name: value` lines"),
        (b"- a\n- b\n", r"train.yaml must hold `name: value` lines"),
        (b"!!python/object/apply:os.getcwd []", r"train.yaml cannot be read as YAML"),
        (b"epoch: 3\n", r"train.yaml: 'epoch' is not a setting"),
        (b"lr: slow\n", r"train.yaml: lr='slow' is not valid"),
    ],
)
def test_a_bad_yaml_file_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(content)
    with pytest.raises((InputError, ConfigError), match=sentence) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file .*absent.yaml"):
        read_config(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path)


@given(st.dictionaries(st.sampled_from([*TrainConfig.model_fields]), st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=1)
), max_size=4))  # fmt: skip
def test_any_values_become_settings_or_a_sentence(values: dict[str, Any]) -> None:
    try:
        config = make_config(values)
    except (ConfigError, UnknownName):
        return
    assert make_config(config.model_dump()) == config


def test_the_record_itself_raises_sentences() -> None:
    with pytest.raises(ConfigError, match=r"^lr=-1 is not valid: give a number greater than 0\.$"):
        TrainConfig(lr=-1)
    with pytest.raises(ConfigError, match=r"^'learning_rate' is not a setting\. `grash settings` lists them all\.$"):
        TrainConfig(learning_rate=1)
    with pytest.raises(ConfigError, match=r"^patience=True is not valid: give a number\.$"):
        TrainConfig(patience=True)
    with pytest.raises(ConfigError, match=r"^dim=\[0, 0, 0, .*\.\.\. is not valid: give a whole number\.$"):
        TrainConfig.model_validate({"dim": [0] * 1000})
