"""What a study is about: a dataset, a pool of configurations of one space, and the settings that both come from.

The first file of a study's walk; graphs.py cuts the dataset, cells.py says what is trained, run.py trains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grash import __version__
from grash.data.dataset import Dataset
from grash.engines.driver import FIXED_LENGTH_SCHEDULES
from grash.errors import ConfigError
from grash.search.proposals import full_training, make_configurations
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Configuration
from grash.training.config import TrainConfig, make_config

# Values of settings that tables and stores of before those settings do not name.
OLDER_SETTINGS = {"trend": 0.0, "scaled_penalties": False, "final_threads": None, "last_round_holdout": "random"}
SCHEMA, VERSION = "grash-study", 1
DEFAULT = -1  # the number of the configuration that has no value of the space: TrainConfig's own defaults


@dataclass(frozen=True, eq=False)
class Pool:
    """Configurations 0 … n − 1 of a space, drawn at random; a larger pool begins with the smaller one.

    label: what the space is called in names of files. settings: those of a search that would draw the same ones.
    """

    dataset: Dataset
    settings: SearchSettings
    label: str
    configurations: tuple[Configuration, ...]

    @property
    def n(self) -> int:
        return len(self.configurations)

    @property
    def name(self) -> str:
        s = self.settings
        return f"{self.dataset.name}-{s.models[0]}-d{s.dim}-{self.label}-e{s.max_epochs:g}-s{s.seed}"

    def config(self, number: int) -> TrainConfig:
        """A configuration's training at full fidelity."""
        if number == DEFAULT:
            return full_training(self.settings, self.settings.models[0], {}, number=0)
        return make_config(self.configurations[number].values)

    def meta(self) -> dict[str, Any]:
        """What results of this pool belong to, JSON-able: equal for every n."""
        data, s = self.dataset, self.settings
        newer = {"scaled_penalties": True} if s.scaled_penalties else {}  # not in old ones
        return {
            "schema": SCHEMA, "version": VERSION, "grash": __version__,
            "dataset": data.name, "fingerprint": data.unnamed_fingerprint,
            "n_entities": data.n_entities, "n_relations": data.n_relations, "n_train": len(data.train),
            "n_valid": len(data.valid), "n_test": len(data.test),
            "model": s.models[0], "dim": s.dim, "epochs": s.max_epochs, "seed": s.seed,
            "space": s.space, "label": self.label, "fixed": dict(s.fixed),
            "negatives_floor": s.negatives_floor, "guarded_split": s.guarded_split, "degree": s.degree,
            **newer,
        }  # fmt: skip


def make_pool(
    dataset: Dataset,
    *,
    n: int,
    model: str = "complex",
    dim: int = 128,
    epochs: float = 100.0,
    space: str | Mapping[str, Any] = "paper",
    label: str | None = None,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
) -> Pool:
    """The first n configurations of a space. fixed: settings of the training that are not searched."""
    settings = make_settings(
        {
            "models": (model,), "dim": dim, "max_epochs": epochs, "n_trials": n, "seed": seed, "proposals": "random",
            "space": space if isinstance(space, str) else dict(space), "fixed": dict(fixed or {}),
            "scaled_penalties": space != "paper",
        }
    )  # fmt: skip
    if label is None and not isinstance(space, str):
        raise ConfigError("The space of a study was given as parameters: give a label, by which its files are called.")
    made = make_configurations(settings, dataset.n_entities, n)
    _check_kinds(made)
    words = [label or str(space), *(f"{name}.{value}" for name, value in sorted(settings.fixed.items()))]
    return Pool(dataset, settings, "-".join(words), tuple(made))


def _check_kinds(made: list[Configuration]) -> None:
    """One training stands for all shorter ones only where the rate does not depend on how long it is."""
    for c in made:
        if c.values["schedule"] in FIXED_LENGTH_SCHEDULES:
            raise ConfigError(
                f"Configuration {c.number} has schedule={c.values['schedule']}, whose rate depends on the length of "
                f"the run, and a study reads shorter runs off a longer one: give a space with schedule=constant."
            )
        if c.values["training"] == "kvsall":
            raise ConfigError(
                f"Configuration {c.number} has training=kvsall, whose epochs are of questions, and a study counts "
                f"triples: give a space without it."
            )
