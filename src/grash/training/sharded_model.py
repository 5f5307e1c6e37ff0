"""The model folder of a training whose rows are spread over ranks: an ordinary one, each rank writing its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grash.data.dataset import Dataset
from grash.models import KgeModel
from grash.models.store import write_record
from grash.training.sharded_company import Company
from grash.training.sharded_rows import Shard
from grash.training.sharded_tables import shared_folder, write_tables, write_together

_TABLES = "embeddings.safetensors"


def save_model_shard(
    model: KgeModel,
    dataset: Dataset,
    folder: Path,
    *,
    about: dict[str, Any],
    shard: Shard,
    company: Company,
    overwrite: bool = False,
) -> None:
    """Writes this rank's part of the folder, which is there when all have written theirs.

    model: this rank's rows, and all relations. about: config, evaluation and history, as in `models.store`."""
    with shared_folder(folder, company, overwrite=overwrite) as aside:
        tables = {"entity": model.entity, "relation": model.relation}
        write_tables(aside / _TABLES, tables, {"entity"}, shard, company)

        def finish() -> None:
            dataset.save(aside / "dataset")
            write_record(aside, model, dataset, about)

        write_together(folder, company, finish if company.rank == 0 else lambda: None)
