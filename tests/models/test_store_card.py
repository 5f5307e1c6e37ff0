"""The model card of a model folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grash.models.store import load_model, save_model

from .test_store import small_model

EVALUATION = {
    "split": "test", "n_triples": 7, "mrr_interval": [0.4, 0.6],
    "both": {"mrr": 0.5, "hits@1": 0.25, "hits@3": 0.75, "hits@10": 1.0},
}  # fmt: skip


def test_the_card_has_data_settings_results_with_interval_and_how_to_load(tmp_path: Path) -> None:
    save_model(replace(small_model(), evaluation=EVALUATION), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: grash\n") and "# rotate, 4 floats per entity, on people" in card
    assert "| 0.5000 (95 % interval 0.4000 to 0.6000) | 0.2500 | 0.7500 | 1.0000 |" in card
    assert "| lr | 0.1 |" in card and "grash.load_model" in card and "pip install grash-kge" in card
    assert small_model().dataset.fingerprint in card and "License\n\nNot set." in card


def test_a_model_without_a_test_says_so(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path / "model")
    assert "The model was not tested." in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_names_in_the_card_are_text(tmp_path: Path) -> None:
    stored = small_model()
    dataset = replace(stored.dataset, name="<img src=x onerror=alert(1)>\n# [me](http://x) |a")
    save_model(replace(stored, dataset=dataset), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "<img" not in card and "[me]" not in card and "\n# &#91;" not in card
    assert "&#60;img src=x onerror=alert(1)&#62; &#35; &#91;me&#93;(http://x) &#124;a" in card


def test_a_card_may_be_edited_or_removed(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path / "model")
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace("Not set.", "CC0"), encoding="utf-8")
    load_model(tmp_path / "model")
    card.unlink()
    load_model(tmp_path / "model")
