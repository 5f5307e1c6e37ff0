"""The map of entities: places, colors, and the page in a real browser."""

from __future__ import annotations

import base64
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError, UnknownName
from grash.report.map import pca_places, relation_classes, type_classes, umap_places
from report.test_page_browser import CHROMIUM, HOSTILE, opened
from small_graph import grash, model_of, rings


def data_of(page: Path) -> Any:
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_pca_is_the_projection_of_most_variance() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32) * np.array([1, 9, 1, 4, 1], np.float32)
    found = pca_places(rows)
    _, values, axes = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs((rows - rows.mean(0)) @ axes[:2].T), rtol=1e-3, atol=1e-3)
    assert np.array_equal(found, pca_places(rows)) and values[0] > values[1]
    assert pca_places(rows[:, :1]).shape == (200, 2)


@pytest.mark.slow
def test_umap_tells_that_it_takes_long_repeats_and_keeps_groups_together(caplog: pytest.LogCaptureFixture) -> None:
    """In one test, since UMAP compiles for ten seconds in each process."""
    pytest.importorskip("umap", reason="umap-learn is the extra `map`")
    generator = np.random.default_rng(0)
    rows = np.concatenate([generator.normal(size=(30, 8)) + 6 * np.eye(8)[k] for k in range(2)]).astype(np.float32)
    with caplog.at_level(logging.INFO, logger="grash"):
        assert umap_places(np.eye(12, 8, dtype=np.float32), 0).shape == (12, 2)
    assert caplog.messages[0] == "UMAP places 12 entities: this can take a minute. PCA (method pca) takes seconds."
    places = umap_places(rows, 0)
    assert np.array_equal(places, umap_places(rows, 0))
    middles = places[:30].mean(0), places[30:].mean(0)
    spread = np.linalg.norm(places[:30] - middles[0], axis=1).mean()
    assert np.linalg.norm(middles[0] - middles[1]) > 2 * spread


def test_colors_are_the_most_frequent_side_and_the_first_type() -> None:
    data = rings()
    train = np.array([[0, 0, 1], [0, 0, 2], [1, 1, 3], [4, 2, 5], [4, 2, 6], [6, 2, 4]], np.int32)
    data = replace(data, train=train)
    classes, labels = relation_classes(data, np.arange(12))
    wanted = ["head of next", "tail of two on", "head of beside", "tail of beside"]
    assert [labels[c] for c in classes[[0, 3, 4, 5]]] == wanted
    assert labels[-1] == "other" and labels[classes[11]] == "other"  # in no triple
    classes, labels = type_classes(data, np.arange(12), 0)
    assert labels[classes[0]] == "person 1" and labels[classes[1]] == "other"


def test_the_page_has_places_names_and_colors_of_every_entity(tmp_path: Path) -> None:
    model = model_of(rings(), dim=8)
    path = model.map(tmp_path / "map.html", method="pca", type_relation="beside")
    data = data_of(path)
    places = np.frombuffer(base64.b64decode(data["places"]), "<u2").reshape(-1, 2)
    assert places.shape == (12, 2) and places.min() == 0 and places.max() == 65535
    assert data["names"][3] == "person 3" and [c["title"] for c in data["colors"]] == ["type", "relation"]
    with pytest.raises(InputError, match="already exists"):
        model.map(path, method="pca")


def test_a_large_graph_shows_the_entities_with_most_triples(tmp_path: Path) -> None:
    model = model_of(rings())
    degree = np.bincount(model.dataset.train[:, [0, 2]].reshape(-1), minlength=12)
    data = data_of(model.map(tmp_path / "map.html", method="pca", max_points=4))
    chosen = [int(name.removeprefix("person ")) for name in data["names"]]
    assert len(chosen) == 4 and degree[chosen].min() >= np.sort(degree)[-4]
    assert "4 entities of 12, those with most triples" in (tmp_path / "map.html").read_text(encoding="utf-8")


def test_wrong_options_are_sentences(tmp_path: Path) -> None:
    model = model_of(rings())
    with pytest.raises(ConfigError, match="method='tsne' is unknown: give auto, umap, pca"):
        model.map(tmp_path / "m", method="tsne")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_points=1 is not possible"):
        model.map(tmp_path / "m", max_points=1)
    with pytest.raises(UnknownName, match="no relation named 'besid'.*beside"):
        model.map(tmp_path / "m", type_relation="besid")


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    model_of(rings()).save(tmp_path / "model")
    done = grash("map", tmp_path / "model", "-o", tmp_path / "map.html", "--method", "pca")
    assert done.code == 0 and str(tmp_path / "map.html") in done.out.replace("\n", "")


PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement.dataset, canvas = document.getElementById("map");
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  root.marks = pixels.reduce((sum, p) => sum + (p ? 1 : 0), 0);
  root.wide = document.documentElement.scrollWidth > innerWidth;
  const search = document.getElementById("search");
  search.value = "onerror"; search.dispatchEvent(new Event("input"));
  root.found = document.querySelectorAll("#found button").length;
  document.querySelector("#found button").click();
  document.querySelector("#legend button").click();
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.width / 2, clientY: box.height / 2}));
  root.hover = document.getElementById("name").textContent;
}, 300));
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")
def test_labels_that_would_overlap_are_left_out(tmp_path: Path) -> None:
    model = model_of(rings(), dim=8)
    apart = model.map(tmp_path / "apart.html", method="pca")
    assert 'data-labels="12"' in opened(apart, tmp_path / "profile")[0]
    model.kge.entity[:8] = model.kge.entity[:1]
    together = model.map(tmp_path / "together.html", method="pca")
    assert 'data-labels="6"' in opened(together, tmp_path / "profile")[0]  # of the eight: right and left of the point


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")
@pytest.mark.parametrize("options", [(), ("--window-size=390,800",), ("--blink-settings=preferredColorScheme=0",)])
def test_the_map_works_in_a_browser_and_names_are_text(tmp_path: Path, options: tuple[str, ...]) -> None:
    data = rings()
    names = [HOSTILE if i == 5 else "</script><script>document.documentElement.dataset.hacked=1</script>" if i == 6
             else f"person {i}" for i in range(12)]  # fmt: skip
    data = replace(data, entities=Vocabulary.from_names(names), name=HOSTILE)
    page = model_of(data, dim=8).map(tmp_path / "map.html", method="pca")
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    document, console = opened(page, tmp_path / "profile", *options)
    assert console == [] and "data-hacked" not in document
    assert 'data-ready="yes"' in document and 'data-wide="false"' in document and 'data-found="1"' in document
    marks = re.search(r'data-marks="(\d+)"', document)
    assert marks is not None and int(marks[1]) >= 12 * 9
    assert re.search(r'data-hover="&lt;img src=x onerror', document)
