"""A model folder: anyone can open it with safetensors, JSON and NumPy; nothing in it is code.

model.json               schema, version, what the model is, its config, its evaluation, checksum of the tables
embeddings.safetensors   entity (E, D), relation (R or 2R, width)
dataset/                 the encoded dataset: names, and the triples that are known
"""

from __future__ import annotations

import hashlib
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
from grash.files import atomic_folder, check_replaceable, read_json, write_json
from grash.kernels.host_rows import cpu_view, row_blocks
from grash.models import KgeModel, model_class

SCHEMA, VERSION = "grash-model", 1
_VERIFY_BELOW = 4 << 30  # larger tables are hashed only on request


@dataclass(frozen=True, eq=False)
class StoredModel:
    model: KgeModel
    dataset: Dataset
    config: dict[str, Any]
    evaluation: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def save_model(stored: StoredModel, folder: Path, *, overwrite: bool = False) -> None:
    """Writes the folder, wholly or not at all. With `overwrite`, a model there is replaced, nothing else is."""
    folder = Path(folder)
    check_free(folder, overwrite=overwrite)
    model = stored.model
    with atomic_folder(folder, overwrite=overwrite) as aside:
        write_tensors({"entity": model.entity, "relation": model.relation}, aside / "embeddings.safetensors")
        stored.dataset.save(aside / "dataset")
        about = {"config": stored.config, "evaluation": stored.evaluation, "history": stored.history}
        write_record(aside, model, stored.dataset, about)


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Says, before a training too, why a model would not be saved there; one that a kill left aside is brought back."""
    check_replaceable(folder, overwrite=overwrite, kind="a model folder", marker="model.json")


def write_record(folder: Path, model: KgeModel, dataset: Dataset, about: dict[str, Any]) -> None:
    """model.json beside tables that are written. about: config, evaluation and history."""
    record = {
        "schema": SCHEMA,
        "version": VERSION,
        "grash": __version__,
        "model": model.name,
        "dim": model.dim,
        "norm": model.norm,
        "reciprocal": model.reciprocal,
        "n_entities": dataset.n_entities,
        "n_relations": model.n_relations,
        "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        **about,
        "sha256": file_sha256(folder / "embeddings.safetensors"),
    }
    write_json(folder / "model.json", record)


def load_model(folder: Path, *, device: torch.device | str = "cpu", verify: bool | None = None) -> StoredModel:
    """The model of a folder. Checksums of tables, triples and names are compared where the tables are below 4 GiB,
    or as `verify` says."""
    folder = Path(folder)
    if not (folder / "model.json").is_file() and (folder / "model" / "model.json").is_file():
        folder = folder / "model"  # the run folder of a search
    if not (folder / "model.json").is_file():
        raise InputError(f"{folder} is no model folder: it has no model.json.")
    record = read_json(folder / "model.json", schema=SCHEMA, version=VERSION)
    path = folder / "embeddings.safetensors"
    try:
        if verify is None:
            verify = path.stat().st_size < _VERIFY_BELOW
        if verify and file_sha256(path) != record["sha256"]:
            raise FormatError(f"{path} is not what model.json says it is: it was changed or cut short.")
        tables = safetensors.torch.load_file(path, device=str(device))
        model = model_class(record["model"])(
            tables["entity"], tables["relation"], reciprocal=record["reciprocal"], norm=record["norm"]
        )
        counts = (record["n_entities"], record["n_relations"], record["dim"])
        config, evaluation, history = record["config"], record["evaluation"], record["history"]
        fingerprint = record["dataset"]["fingerprint"]
    except (
        SafetensorError,
        OSError,
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        UnknownName,
        ConfigError,
    ) as error:
        raise FormatError(f"{folder} is a damaged model folder ({error}): train or copy it anew.") from error
    for name in ("model", "dim", "norm", "reciprocal"):
        if config.get(name, record[name]) != record[name]:
            raise FormatError(f"{folder} is a damaged model folder: model.json says two things about {name}.")
    dataset = Dataset.load(folder / "dataset", verify=verify)
    if dataset.fingerprint != fingerprint:
        raise FormatError(f"{folder / 'dataset'} is not the dataset that model.json names: it was exchanged.")
    if counts != (model.n_entities, model.n_relations, model.dim) or counts[:2] != (
        dataset.n_entities,
        dataset.n_relations,
    ):
        raise FormatError(f"{folder} is a damaged model folder: its tables, names and model.json differ in size.")
    return StoredModel(model, dataset, config, evaluation, history)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


# = Tensors in a safetensors file, written and read piece by piece: none of them is ever there twice.
# =
# = Used by model folders (`models/store`) and checkpoints (`training/state`), whose tables may be as large as the memory.
# = The format is that of the safetensors library (a header's length, the header in JSON, the tensors one after the other),
# = whose own writer takes every tensor as one block of host memory.

_TYPES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip
_PIECE_BYTES = 64 << 20


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes tensors of any device; a full disk is an OSError."""
    header, end = {}, 0
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in sorted(tensors.items()):
            _write(tensor, file)


def read_tensors(path: Path, targets: dict[str, Tensor]) -> None:
    """Fills the targets, wherever they lie, from tensors of the same names and shapes."""
    with safe_open(path, framework="pt") as stored:
        for name, target in targets.items():
            part = stored.get_slice(name)
            if part.get_shape() != list(target.shape):
                raise ValueError(f"{name} has another shape")
            if not target.ndim:
                target.copy_(stored.get_tensor(name))
                continue
            there = cpu_view(target)
            for first in range(0, len(there), step := _rows(target)):
                there[first : first + step].copy_(part[first : first + step])


def _write(tensor: Tensor, file: IO[bytes]) -> None:
    there = cpu_view(tensor)
    parts: Iterable[Tensor] = [there] if not there.ndim else (rows for _, rows in row_blocks(there, _rows(there)))
    for rows in parts:
        if rows.numel():
            if rows.dtype == torch.bfloat16:  # which NumPy does not know
                rows = rows.view(torch.int16)
            file.write(rows.cpu().contiguous().numpy().reshape(-1).data)


def _rows(tensor: Tensor) -> int:
    return max(1, _PIECE_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
