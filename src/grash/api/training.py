"""Train a model in Python, or fold several into one.

dataset = grash.load_dataset("world")
model = grash.train(dataset, model="complex", epochs=20, out="runs/world")
model.predict(head="Egypt", relation="neighbour_of")
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grash.api.model import Model, load_model
from grash.data.dataset import Dataset
from grash.data.load import Source, as_dataset
from grash.engines.trainer import run_identity, run_training
from grash.errors import InputError
from grash.evaluation.evaluate import check_sample
from grash.files import check_writable, repair_folder
from grash.keywords import TrainKeywords, with_keywords
from grash.models.ensemble import fold_models
from grash.models.store import check_model_folder
from grash.report.live import training_display
from grash.training.checkpoint import checkpoint_belongs_to, checkpoint_folder
from grash.training.config import TrainConfig, make_config, read_config
from grash.training.loop import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

Settings = TrainConfig | Mapping[str, Any] | str | Path


@with_keywords(TrainKeywords)
def train(
    dataset: Source,
    config: Settings | None = None,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    watch: Callable[[Progress], None] | None = None,
    progress: bool = True,
    overwrite: bool = False,
    evaluate: bool = True,
    calibrate: bool = True,
    valid_sample: int | None = None,
    test_sample: int | None = None,
    placement: str = "auto",
    **settings: Unpack[TrainKeywords],
) -> Model:
    """Train a model and return the one of the best validation, evaluated on test (if it has triples), calibrated on
    valid and saved to `out` (if given).

    config: a TrainConfig, a mapping or a YAML file; `settings` change its fields. checkpoint: folder to resume from and
    to save to. With `out` it is beside that folder by default, and removed when the model is saved. On Ctrl-C the
    checkpoint is saved after the current step, and the same call resumes from it. watch: receives the progress.
    progress: without `watch`, show a line of it in terminals and notebooks.
    evaluate, calibrate: whether to test and to calibrate at the end. placement: where the entities are stored (auto,
    device, host or disk); results do not depend on it.
    """
    data = as_dataset(dataset)
    chosen = configure(config, **settings)
    folder = None if out is None else Path(out)
    saved = Path(checkpoint) if checkpoint is not None else None if folder is None else checkpoint_folder(folder)
    if folder is not None:
        check_output(folder, overwrite=overwrite, test_sample=test_sample)
    with training_display(chosen.epochs, quiet=not progress or watch is not None) as shown:
        state = run_training(
            data, chosen, device=device, threads=threads, checkpoint=saved, valid_sample=valid_sample,
            watch=watch or shown, placement=placement,
        )  # fmt: skip
    model = Model(state.model, data, chosen, history=[v.to_json() for v in state.history])
    _finish(
        model, out=folder, overwrite=overwrite, evaluate=evaluate, calibrate=calibrate, valid_sample=valid_sample,
        test_sample=test_sample,
    )  # fmt: skip
    if folder is not None and checkpoint is None and saved is not None:
        shutil.rmtree(saved, ignore_errors=True)
    return model


def _finish(
    model: Model, *, out: str | Path | None, overwrite: bool, evaluate: bool, calibrate: bool,
    valid_sample: int | None, test_sample: int | None,
) -> None:  # fmt: skip
    """Test, calibrate and save a new model."""
    seed = model.config.seed
    if evaluate and len(model.dataset.test):
        model.evaluation = model.evaluate(sample=test_sample, seed=seed).to_dict()
    if calibrate:
        model.calibrate(sample=valid_sample, seed=seed)
    if out is not None:
        model.save(out, overwrite=overwrite)


def ensemble(
    models: Iterable[Model | str | Path],
    *,
    out: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    evaluate: bool = True,
    calibrate: bool = True,
    valid_sample: int | None = None,
    test_sample: int | None = None,
) -> Model:
    """Fold several models of one graph into one, whose score is the sum of theirs, and return it as `train` does.

    models: two or more, or their folders; trained with other seeds or settings, but with the same score function. The
    dimension of the new model is the sum of theirs. evaluate, calibrate: whether to test and to calibrate it.
    InputError for models whose score is not a sum over coordinates.
    """
    members = [each if isinstance(each, Model) else load_model(each, device=device) for each in models]
    if out is not None:
        check_output(Path(out), overwrite=overwrite, test_sample=test_sample)
    if len({each.dataset.fingerprint for each in members}) > 1:
        raise InputError("The models of an ensemble need the same graph: these were trained on different ones.")
    kge = fold_models([each.kge for each in members])
    first = members[0]
    config = first.config.changed(dim=kge.dim)
    model = Model(kge, first.dataset, config, members=sum(each.members for each in members))
    _finish(
        model, out=out, overwrite=overwrite, evaluate=evaluate, calibrate=calibrate, valid_sample=valid_sample,
        test_sample=test_sample,
    )  # fmt: skip
    return model


def check_output(folder: Path, *, overwrite: bool, test_sample: int | None) -> None:
    """Raise before a training what testing and saving would raise after it."""
    check_model_folder(folder, overwrite=overwrite)
    check_sample(test_sample)
    check_writable(folder)


def configure(config: Settings | None = None, **settings: Unpack[TrainKeywords]) -> TrainConfig:
    """Return the TrainConfig of a mapping, a YAML file or another TrainConfig, changed by `settings`."""
    if config is None:
        return make_config(settings)
    if isinstance(config, TrainConfig):
        return config.changed(**settings)
    if isinstance(config, Mapping):
        return make_config({**config, **settings})
    return read_config(Path(config)).changed(**settings)


def unused_folder(
    dataset: Dataset, config: TrainConfig, *, parent: str | Path = "runs", valid_sample: int | None = None
) -> Path:
    """Return PARENT/DATASET-MODEL, or with -2, -3, …: the first without a model and without another run's checkpoint.

    An interrupted run with these settings on this dataset gets its folder again.
    """
    base = Path(parent) / f"{dataset.name}-{config.model}".replace("/", "-")
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        checkpoint = checkpoint_folder(folder)
        if not folder.exists() and (not checkpoint.exists() or can_resume(checkpoint, dataset, config, valid_sample)):
            return folder
        number += 1


def can_resume(checkpoint: str | Path, dataset: Dataset, config: TrainConfig, valid_sample: int | None = None) -> bool:
    """Return whether there is a checkpoint of a training with these settings on this dataset."""
    repair_folder(Path(checkpoint))
    return checkpoint_belongs_to(Path(checkpoint), run_identity(dataset, config, valid_sample))
