"""A map of entities: their rows in two dimensions, as one page that needs no network.

UMAP (umap-learn, extra `map`) keeps near rows near; PCA is the exact linear projection, without a further library.
Points are colored by the relation in which an entity is most often seen, and by type where the graph has type triples.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from grash.data.arrays import in_blocks
from grash.data.candidates import find_type_relation
from grash.data.dataset import Dataset
from grash.errors import ConfigError, InputError
from grash.files import atomic_file, check_absent
from grash.formatting import counted
from grash.kernels.storage import to_float32
from grash.models.base import KgeModel
from grash.optional import optional_import
from grash.report.page import template

Method = Literal["auto", "umap", "pca"]
METHODS: tuple[Method, ...] = ("auto", "umap", "pca")
MAX_POINTS = 1_000_000
MAP_SCRIPT = Path(__file__).parent / "template" / "map.js"
_MAX_UMAP = 100_000  # points that `auto` leaves to UMAP
_N_COLORS = 10  # of the page; the rest is "other"
_ROWS = 1 << 16
_TRIPLES = 1 << 20
_SIZE = 65535
_log = logging.getLogger(__name__)


def write_map(
    kge: KgeModel,
    dataset: Dataset,
    path: str | Path,
    *,
    method: Method = "auto",
    max_points: int = MAX_POINTS,
    type_relation: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write the page and return its path.

    method: auto is UMAP where umap-learn is installed, for up to 100,000 points, else PCA. max_points: of a larger
    graph, the entities with most triples. type_relation: id of the relation to types, by default found by its name.
    """
    path = Path(path)
    if not overwrite:
        check_absent(path)
    data = map_data(kge, dataset, method=method, max_points=max_points, type_relation=type_relation, seed=seed)
    with atomic_file(path) as temporary:
        temporary.write_text(_page(data), encoding="utf-8", errors="replace")
    return path


def map_data(
    kge: KgeModel,
    dataset: Dataset,
    *,
    method: Method = "auto",
    max_points: int = MAX_POINTS,
    type_relation: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return what `map.js` draws, for JSON: title, about, places and names of the points, and their colors.

    The options are those of `write_map`.
    """
    if method not in METHODS:
        raise ConfigError(f"method={method!r} is unknown: give {', '.join(METHODS)}.")
    if not 2 <= max_points <= MAX_POINTS:
        raise ConfigError(f"max_points={max_points} is not possible: give a number from 2 to {MAX_POINTS:,}.")
    if kge.n_entities < 2:
        raise InputError(f"{dataset.name} has {kge.n_entities} entities: a map needs 2 or more.")
    ids = _most_connected(dataset, max_points)
    used = _method(method, len(ids))
    rows = _rows(kge, ids)
    places = umap_places(rows, seed) if used == "umap" else pca_places(rows)
    types = find_type_relation(dataset) if type_relation is None else type_relation
    colors = [] if types is None else [("type", *type_classes(dataset, ids, types))]
    colors.append(("relation", *relation_classes(dataset, ids)))
    entity = str if dataset.entities is None else dataset.entities.name
    how = "UMAP of cosine distances" if used == "umap" else "PCA: the two directions of most variance"
    of_all = "" if len(ids) == dataset.n_entities else f" of {dataset.n_entities:,}, those with most triples"
    return {
        "title": f"Map of {dataset.name}",
        "about": f"{len(ids):,} entities{of_all}. {how}.",
        "places": _encoded(_quantized(places)),
        "names": [_shown(entity(int(i))) for i in ids],
        "colors": [{"title": t, "classes": _encoded(classes), "labels": labels} for t, classes, labels in colors],
    }


def pca_places(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """rows (n, D) → (n, 2): the two directions of most variance, exactly; the largest weight of each is positive."""
    mean = rows.mean(0, dtype=np.float64)
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS] - mean
        covariance += part.T @ part
    _, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    found = (rows - mean) @ axes
    return found if found.shape[1] == 2 else np.column_stack([found, np.zeros(len(found))])


def umap_places(rows: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """rows (n, D) → (n, 2) by UMAP of cosine distances; the same seed gives the same map."""
    _log.info(
        "UMAP places %s: this can take %s. PCA (method pca) takes seconds.",
        counted(len(rows), "entity", "entities"), "a minute" if len(rows) < 10_000 else "some minutes",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few points, and of libraries below
        umap = optional_import("umap", extra="map", purpose="A map by UMAP")
        near, begin = max(2, min(15, len(rows) - 1)), "spectral" if len(rows) > 50 else "random"
        model = umap.UMAP(n_neighbors=near, init=begin, metric="cosine", random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(rows), np.float64)


def relation_classes(dataset: Dataset, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the class (n,) of each entity, and the names of the classes: the side and relation it is seen in most."""
    n_kinds, shown = 2 * dataset.n_relations, np.zeros(dataset.n_entities, bool)
    shown[ids] = True
    parts = [np.empty(0, np.int64)]
    for _, block in in_blocks(dataset.train, _TRIPLES):
        for column, kind in ((0, 0), (2, dataset.n_relations)):
            chosen = block[shown[block[:, column]]].astype(np.int64)
            parts.append(chosen[:, column] * n_kinds + kind + chosen[:, 1])
    keys, counts = np.unique(np.concatenate(parts), return_counts=True)
    order = np.lexsort((keys, -counts))  # the most frequent first, so that the first of an entity is its kind
    entities, first = np.unique(keys[order] // n_kinds, return_index=True)
    kinds = np.full(dataset.n_entities, -1, np.int64)
    kinds[entities] = keys[order][first] % n_kinds
    name = str if dataset.relations is None else dataset.relations.name
    n = dataset.n_relations
    return _classes(kinds[ids], lambda k: f"head of {name(k)}" if k < n else f"tail of {name(k - n)}")


def type_classes(dataset: Dataset, ids: NDArray[np.int64], relation: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the class (n,) of each entity, and the names of the classes: the first type in train."""
    triples = dataset.train[dataset.train[:, 1] == relation]
    types = np.full(dataset.n_entities, -1, np.int64)
    types[triples[::-1, 0]] = triples[::-1, 2]
    return _classes(types[ids], str if dataset.entities is None else dataset.entities.name)


def _classes(kinds: NDArray[np.int64], name: Any) -> tuple[NDArray[np.uint8], list[str]]:
    """Number the most frequent kinds 0, 1, …; all others (and −1, none) are the last class."""
    found, counts = np.unique(kinds[kinds >= 0], return_counts=True)
    kept = found[np.lexsort((found, -counts))][:_N_COLORS]
    classes = np.full(len(kinds), _N_COLORS, np.uint8)
    for number, kind in enumerate(kept):
        classes[kinds == kind] = number
    labels = [_shown(name(int(kind))) for kind in kept]
    if (classes == _N_COLORS).any():
        labels += [""] * (_N_COLORS - len(labels)) + ["other"]
    return classes, labels


def _method(method: Method, n: int) -> Literal["umap", "pca"]:
    if method != "auto":
        return method
    return "umap" if n <= _MAX_UMAP and importlib.util.find_spec("umap") is not None else "pca"


def _most_connected(dataset: Dataset, max_points: int) -> NDArray[np.int64]:
    if dataset.n_entities <= max_points:
        return np.arange(dataset.n_entities)
    degree = np.bincount(dataset.train[:, 0], minlength=dataset.n_entities)
    degree += np.bincount(dataset.train[:, 2], minlength=dataset.n_entities)
    return np.sort(np.argsort(-degree, kind="stable")[:max_points])


def _rows(kge: KgeModel, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the embeddings (n, D), without biases."""
    chosen = torch.from_numpy(ids).to(kge.entity.device)
    parts = [to_float32(kge.entity[part])[:, : kge.dim].cpu() for part in chosen.split(_ROWS)]
    rows = torch.cat(parts).numpy()
    if not np.isfinite(rows).all():
        raise InputError("The model contains NaN or infinite numbers: train the model again.")
    return rows


def _page(data: dict[str, Any]) -> str:
    from markupsafe import Markup

    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":  # a name cannot end the script
        text = text.replace(character, f"\\u{ord(character):04x}")
    return template("map.html").render(
        title=data["title"], about=data["about"], data=Markup(text),  # noqa: S704, escaped above
        script=Markup(MAP_SCRIPT.read_text(encoding="utf-8")),  # noqa: S704, ours
    )  # fmt: skip


def _quantized(places: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return places as whole numbers from 0 to 65,535, in the same scale for both axes."""
    low, high = places.min(0), places.max(0)
    span = max(float((high - low).max()), 1e-30)
    return np.round((places - (low + high) / 2) / span * _SIZE + _SIZE / 2).clip(0, _SIZE).astype("<u2")


def _encoded(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _shown(name: str) -> str:
    """Return a name without control characters, shortened."""
    return "".join(c if c.isprintable() else "�" for c in name[:200])
