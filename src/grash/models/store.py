"""Model folders, which safetensors, JSON and NumPy can read; they contain no code.

    model.json               schema, version, the model with its config and evaluation
    embeddings.safetensors   entity (E, D), relation (R or 2R, width), and weight.NAME for each weight beside them
    calibration.json         how scores become probabilities; absent if the model is not calibrated
    checksums.json           checksums of these, compared when the model is loaded
    README.md                the model card, for people and the Hugging Face Hub; it has no checksum, so you can edit it
    dataset/                 the encoded dataset: names and known triples

`write_tensors` and `read_tensors`, which checkpoints use too, handle tables as large as the memory: they write and read
in blocks, where the writer of the safetensors library needs every tensor as one block of host memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grash import __version__
from grash.data.dataset import Dataset
from grash.errors import ConfigError, FormatError, InputError, UnknownName
from grash.files import atomic_folder, check_replaceable, read_json, verify_folder, write_checksums, write_json
from grash.kernels.storage import cpu_view, row_blocks
from grash.models import MODELS, KgeModel, model_class, unknown_model
from grash.models.base import model_tensors

SCHEMA, VERSION = "grash-model", 1
CALIBRATION_FILE = "calibration.json"
CARD_FILE = "README.md"
_BLOCK_BYTES = 64 << 20
_TYPES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip
_FLOATS = (torch.float32, torch.bfloat16, torch.float64)
# a damaged folder may raise any of these
_DAMAGE = (SafetensorError, OSError, KeyError, ValueError, TypeError, IndexError, UnknownName, ConfigError)


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model with its dataset and history of training."""

    model: KgeModel
    dataset: Dataset
    config: dict[str, Any]
    evaluation: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    calibration: dict[str, Any] | None = None
    members: int = 1  # models folded into this one, if it is an ensemble


def save_model(stored: StoredModel, folder: Path, *, overwrite: bool = False) -> None:
    """Write the folder completely or not at all. `overwrite` allows to replace a model, nothing else."""
    folder = Path(folder)
    check_model_folder(folder, overwrite=overwrite)
    model = stored.model
    with atomic_folder(folder, overwrite=overwrite, checksums=True) as temporary:
        write_tensors(model_tensors(model), temporary / "embeddings.safetensors")
        stored.dataset.save(temporary / "dataset")
        about: dict[str, Any] = {"config": stored.config, "evaluation": stored.evaluation, "history": stored.history}
        about |= {"members": stored.members} if stored.members > 1 else {}
        write_record(temporary, model, stored.dataset, about)
        if stored.calibration is not None:
            write_json(temporary / CALIBRATION_FILE, stored.calibration)


def replace_calibration(folder: Path, calibration: dict[str, Any]) -> None:
    """Write the calibration of a stored model. An interruption leaves a whole model, with the old or the new one."""
    verify_folder(folder, without=CALIBRATION_FILE)
    write_checksums(folder, without=CALIBRATION_FILE)
    write_json(folder / CALIBRATION_FILE, calibration)
    write_checksums(folder)


def check_model_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError if a model cannot be saved there; call it before training too."""
    check_replaceable(folder, overwrite=overwrite, kind="a model folder", marker="model.json")


def write_record(folder: Path, model: KgeModel, dataset: Dataset, about: dict[str, Any]) -> None:
    """Write model.json and the model card next to the tables. about: config, evaluation, history, perhaps members."""
    record = {
        "schema": SCHEMA, "version": VERSION, "grash": __version__, "model": model.name, "dim": model.dim,
        "norm": model.norm, "reciprocal": model.reciprocal, "n_entities": dataset.n_entities,
        "n_relations": model.n_relations, "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        **about,
    }  # fmt: skip
    write_json(folder / "model.json", record)
    (folder / CARD_FILE).write_text(model_card(record, dataset), encoding="utf-8")


def verify_model(folder: Path) -> None:
    """Compare the files of a model folder with their checksums; FormatError if one is damaged."""
    verify_folder(folder)
    verify_folder(folder / "dataset")


def load_model(
    folder: Path, *, device: torch.device | str = "cpu", verify: bool = True, calibrated: bool = True
) -> StoredModel:
    """Load the model of a folder, or of the run folder of a search. On a CPU, its tables are memory-mapped.

    verify: compare the files with their checksums first, which reads all of them. calibrated: with its calibration.
    """
    folder = model_folder(folder)
    if not folder.exists():
        raise InputError(f"There is no folder {folder}.")
    if not (folder / "model.json").is_file():
        raise InputError(f"{folder} is not a model folder: it has no model.json.")
    record = read_json(folder / "model.json", schema=SCHEMA, version=VERSION)
    if isinstance(name := record.get("model"), str) and name not in MODELS:
        raise FormatError(f"{folder} has the model {unknown_model(name)}")
    if verify:
        verify_folder(folder, without=CALIBRATION_FILE)
    if verify and calibrated:
        try:
            verify_folder(folder)
        except FormatError as error:  # of the one file that can be made again
            path = folder / CALIBRATION_FILE
            raise FormatError(f"{path} is missing or damaged: write it again with grash calibrate.") from error
    try:
        tables = safetensors.torch.load_file(folder / "embeddings.safetensors", device=str(device))
        for name, tensor in tables.items():
            if tensor.dtype not in _FLOATS:
                raise ValueError(f"{name} has the type {tensor.dtype}")
            if name in ("entity", "relation") and tensor.ndim != 2:
                raise ValueError(f"{name} has {tensor.ndim} dimensions instead of 2")
        entity, relation = tables.pop("entity"), tables.pop("relation")
        weights = {name.removeprefix("weight."): tensor for name, tensor in tables.items()}
        model = model_class(record["model"])(
            entity, relation, reciprocal=record["reciprocal"], norm=record["norm"], weights=weights
        )
        counts = (record["n_entities"], record["n_relations"], record["dim"])
        config, evaluation = dict(record["config"]), dict(record["evaluation"])
        history = [dict(validation) for validation in record["history"]]
        fingerprint, members = record["dataset"]["fingerprint"], int(record.get("members", 1))
    except _DAMAGE as error:
        raise FormatError(f"{folder} is a damaged model folder ({error}): train or copy it again.") from error
    for name in ("model", "dim", "norm", "reciprocal"):
        if config.get(name, record[name]) != record[name]:
            raise FormatError(f"{folder} is a damaged model folder: model.json contradicts its config about {name}.")
    dataset = Dataset.load(folder / "dataset", verify=verify)
    if dataset.fingerprint != fingerprint:
        raise FormatError(f"{folder / 'dataset'} is not the dataset of model.json: it was replaced.")
    of_tables, of_dataset = (model.n_entities, model.n_relations), (dataset.n_entities, dataset.n_relations)
    if counts != (*of_tables, model.dim) or of_tables != of_dataset:
        raise FormatError(f"{folder} is a damaged model folder: its tables, names and model.json differ in size.")
    path = folder / CALIBRATION_FILE
    stored = calibrated and path.is_file()
    calibration = read_json(path, schema="grash-calibration", version=1) if stored else None
    return StoredModel(model, dataset, config, evaluation, history, calibration, members)


def model_folder(folder: Path) -> Path:
    """Return the model folder in a run folder, or the folder itself."""
    folder = Path(folder)
    inside = folder / "model"
    return inside if not (folder / "model.json").is_file() and (inside / "model.json").is_file() else folder


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors of any device to a safetensors file; a full disk is an OSError."""
    header, end = {}, 0
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in sorted(tensors.items()):
            _write(tensor, file)


def read_tensors(path: Path, targets: dict[str, Tensor]) -> None:
    """Fill the targets, on any device or offloaded, from tensors of the same names and shapes."""
    with safe_open(path, framework="pt") as stored:
        for name, target in targets.items():
            part = stored.get_slice(name)
            if part.get_shape() != list(target.shape):
                raise ValueError(f"{name} has the shape {part.get_shape()}, not {list(target.shape)}")
            if not target.ndim:
                target.copy_(stored.get_tensor(name))
                continue
            on_cpu = cpu_view(target)
            for first in range(0, len(on_cpu), step := _rows(target)):
                on_cpu[first : first + step].copy_(part[first : first + step])


def _write(tensor: Tensor, file: IO[bytes]) -> None:
    on_cpu = cpu_view(tensor)
    parts: Iterable[Tensor] = [on_cpu] if not on_cpu.ndim else (rows for _, rows in row_blocks(on_cpu, _rows(on_cpu)))
    for rows in parts:
        if rows.numel():
            if rows.dtype == torch.bfloat16:  # not supported by NumPy
                rows = rows.view(torch.int16)
            file.write(rows.cpu().contiguous().numpy().reshape(-1).data)


def _rows(tensor: Tensor) -> int:
    return max(1, _BLOCK_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))


_METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
_RUN_SETTINGS = ("model", "dim", "seed", "variation")  # in the title, or not about quality
_CARD = """---
library_name: grash
tags: [knowledge-graph, knowledge-graph-embedding, link-prediction, {model}]
---

# {title}

A knowledge graph embedding model, trained with grash {version}. It predicts missing triples (head, relation, tail) of
the graph that it was trained on; it knows no other entities.{members}

## Data

| | |
|---|---|
| graph | {graph} |
| entities | {n_entities:,} |
| relations | {n_relations:,} |
| train, valid and test triples | {splits} |
| fingerprint | `{fingerprint}` |

The folder `dataset/` holds the names and all triples, so sharing the model shares the graph.

## Results

{results}

## Use it

```bash
pip install grash-kge
grash predict FOLDER --head NAME --relation NAME
```

```python
import grash

model = grash.load_model("FOLDER")
model.predict(head="NAME", relation="NAME", k=10)
```

The tables are in `embeddings.safetensors`. The folder contains no code.

## Settings

{settings}

## Limits

Scores rank answers; probabilities need a `calibration.json` in the folder. Answers follow the graph, with its errors
and gaps.

## License

Not set. Add the license of your graph and of this model here, and as `license:` at the top of this file.
"""


def model_card(record: dict[str, Any], dataset: Dataset) -> str:
    """Return the card of a model. record: the content of model.json."""
    config, name, model = record["config"], _plain(str(record["dataset"]["name"])), _plain(str(record["model"]))
    rows = {key: value for key, value in config.items() if key not in _RUN_SETTINGS}
    n = record.get("members", 1)
    lines = [f"| {_plain(str(key))} | {_plain(str(value))} |" for key, value in rows.items()]
    return _CARD.format(
        model=model, members=f" It is an ensemble of {n} models, folded into one." if n > 1 else "",
        title=f"{model}, {record['dim']} floats per entity, on {name}",
        version=__version__, graph=name, n_entities=dataset.n_entities, n_relations=dataset.n_relations,
        splits=", ".join(f"{len(part):,}" for part in (dataset.train, dataset.valid, dataset.test)),
        fingerprint=record["dataset"]["fingerprint"], results=_results(record.get("evaluation", {})),
        settings="\n".join(["| setting | value |", "|---|---|", *lines]) if lines else "Not recorded.",
    )  # fmt: skip


def _results(evaluation: dict[str, Any]) -> str:
    """Return the metrics of the test split as a table, or why there are none."""
    both = evaluation.get("both", {})
    if not isinstance(both, dict) or not all(name in both for name in _METRICS):
        return "The model was not tested."
    interval = evaluation.get("mrr_interval")
    low_high = f" (95 % interval {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    values = " | ".join([f"{both['mrr']:.4f}{low_high}", *(f"{both[name]:.4f}" for name in _METRICS[1:])])
    about = (
        f"Heads and tails of {evaluation.get('n_triples', 0):,} triples of the {evaluation.get('split')} split, "
        f"ranked among all entities; other known answers are left out."
    )
    return "\n".join([about, "", "| MRR | Hits@1 | Hits@3 | Hits@10 |", "|---|---|---|---|", f"| {values} |"])


def _plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is: one line, special characters as entities."""
    shown = "".join(c if c.isprintable() else " " for c in text[:200])
    return "".join(f"&#{ord(c)};" if c in "&<>|[]`*\\#$!" else c for c in shown)
