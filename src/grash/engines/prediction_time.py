"""How long a question to a model takes on this machine, and which dimensions answer within a limit.

A search with `max_prediction_ms` measures this once, before it begins, and keeps it in its settings (`prediction_ms`,
docs/decisions/0066). From there `SearchSettings.largest_dim` limits the proposals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from grash.data.candidates import SeenEntities
from grash.data.dataset import Dataset
from grash.engines.memory import USABLE_SHARE, free_bytes
from grash.evaluation.answers import Answerer
from grash.evaluation.calibration import N_ANSWERS, Calibration, Reliability, Weights
from grash.models import model_class
from grash.search.proposals import make_configurations, possible_dims
from grash.search.settings import SearchSettings
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model

_SECONDS, _QUESTIONS = 0.05, 5  # for which, and how often at least, a question is repeated
_NOTHING = Reliability((), (), ())
_CALIBRATION = Calibration("valid", 0, 1.0, 0.0, 1.0, Weights(0.0, 1.0, 1.0), {}, _NOTHING, _NOTHING)


def measure_predictions(
    settings: SearchSettings, model: str, dataset: Dataset, device: torch.device
) -> dict[int, float]:
    """Return the milliseconds of a question at some of the dimensions that a model may have (`possible_dims`), among
    them the largest one within settings.max_prediction_ms. A model may have several norms; the slowest counts."""
    own, sizes = (
        settings.model_copy(update={"models": (model,), "initial": ()}),
        (dataset.n_entities, len(dataset.train)),
    )
    made = (make_config(c.values) for c in make_configurations(own, sizes[0], own.n_trials, n_train=sizes[1]))
    kinds = list({(config.norm, config.storage): config for config in made}.values())

    def measured(dim: int) -> float:
        return round(max(probe_prediction(config.changed(dim=dim), dataset, device) for config in kinds), 4)

    return times_up_to(possible_dims(settings, model, *sizes), measured, settings.max_prediction_ms or math.inf)


def times_up_to(dims: Sequence[int], measure: Callable[[int], float], limit: float) -> dict[int, float]:
    """Return {dim: measure(dim)} for some of the dims (ascending), with the largest that is within the limit.

    Dimensions are doubled until one is too slow, so that none is measured that takes far more time and memory than the
    limit allows; then the place between is halved. What is too slow is measured twice: something else may have run.
    """
    found: dict[int, float] = {}

    def is_fast(at: int) -> bool:
        milliseconds = measure(dims[at])
        if limit < milliseconds < math.inf:
            milliseconds = min(milliseconds, measure(dims[at]))
        if milliseconds < math.inf:
            found[dims[at]] = milliseconds
        return milliseconds <= limit

    fast, slow, at = -1, len(dims), 0
    while fast < at < slow:
        if is_fast(at):
            fast = at
        else:
            slow = at
        at = min(2 * at + 1, len(dims) - 1) if slow == len(dims) else (fast + slow) // 2
    return found


@torch.no_grad()
def probe_prediction(config: TrainConfig, dataset: Dataset, device: torch.device) -> float:
    """Return the milliseconds of a question to a model with initial rows: the ten best of all entities, with their
    probabilities, without looking up names and known answers. Median of the slower side; ∞ if it does not fit."""
    n_bytes = 4 * dataset.n_entities * model_class(config.model).query_width(config.dim)
    if n_bytes > USABLE_SHARE * free_bytes(device):
        return math.inf
    model = initial_model(config.changed(init="xavier_normal"), dataset.n_entities, dataset.n_relations, device=device)
    none = np.empty((0, 3), np.int32)
    bare = Dataset(none, none, none, dataset.n_entities, dataset.n_relations)
    answerer = Answerer(model, bare, _CALIBRATION, lambda: SeenEntities(bare), None, {})
    return max(_median_ms(answerer, np.array([question])) for question in ((0, 0, -1), (-1, 0, 0)))


def _median_ms(answerer: Answerer, question: NDArray[np.int64]) -> float:
    answerer.answers(question, N_ANSWERS)  # the first one may compile, and finds the largest row
    seconds: list[float] = []
    while len(seconds) < _QUESTIONS or sum(seconds) < _SECONDS:
        began = time.perf_counter()
        answerer.answers(question, N_ANSWERS)
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def prediction_notes(settings: SearchSettings, *, too_slow: bool = False) -> list[str]:
    """Return what `max_prediction_ms` decided, a sentence for each searched model and each that is too slow, or for
    the latter only."""
    notes = []
    for model, times in settings.prediction_ms.items() if settings.max_prediction_ms is not None else ():
        dim, within = settings.largest_dim(model), f"max_prediction_ms={settings.max_prediction_ms:g}"
        slower = min((other for other in times if other > dim), default=None)
        parts = [f"{times[d]:.2g} ms at dim {d}" for d in (dim, slower) if d in times]
        takes = f"a question takes {', '.join(parts) or 'more memory than there is'} ({within})"
        if not dim or (model in settings.models and not too_slow):
            notes.append(f"{model}: {takes}" if dim else f"{model} is left out: {takes}")
    return notes
