"""What a study is about: a dataset, a pool of configurations, and the subgraphs that they are trained on.

Subgraphs are cut as in a search with the same settings (`core-order`, `k-core`, `isolated`); the other techniques are
those that the paper compares with (Sec. 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grash import __version__
from grash.data.dataset import Dataset
from grash.errors import ConfigError
from grash.reduction.sampling import cut_by_walk, random_walks, sample_triples
from grash.reduction.subgraph import Holdout, Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.proposals import full_training, make_configurations
from grash.search.schedule import MIN_VALID, min_entities, round_config
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import FIXED_LENGTH_SCHEDULES, Configuration, Round
from grash.training.config import TrainConfig, make_config
from grash_study.store import SCHEMA, VERSION, Store, Technique

DEFAULT = -1  # the number of the configuration with the default of every setting
_SMALL = 2_000_000  # train triples; more subgraphs are kept in memory below this


@dataclass(frozen=True, eq=False)
class Pool:
    """Configurations 0 … n − 1 of a space, drawn at random; a larger pool starts with the smaller one."""

    dataset: Dataset
    settings: SearchSettings  # of a search that would draw the same configurations
    label: str  # the name of the space in file names
    configurations: tuple[Configuration, ...]

    @property
    def n(self) -> int:
        return len(self.configurations)

    @property
    def name(self) -> str:
        return pool_name(self.meta())

    def config(self, number: int) -> TrainConfig:
        """Return the full training of a configuration."""
        if number == DEFAULT:
            return full_training(self.settings, self.settings.models[0], {}, number=0)
        return make_config(self.configurations[number].values)

    def store(self, folder: Path) -> Store:
        """Return the store of this pool in a folder."""
        return Store.at(Path(folder) / f"{self.name}.jsonl", self.meta())

    def meta(self) -> dict[str, Any]:
        """Return what the results of this pool belong to, JSON-able; it does not depend on n."""
        s = self.settings
        return {
            **dataset_meta(self.dataset), "model": s.models[0], "dim": s.dim, "epochs": s.max_epochs, "seed": s.seed,
            "space": s.space, "label": self.label, "fixed": dict(s.fixed), "negatives_floor": s.negatives_floor,
            "guarded_split": s.guarded_split, "degree": s.degree,
            "scaled_penalties": s.scaled_penalties,
        }  # fmt: skip


def pool_name(meta: Mapping[str, Any]) -> str:
    """Return the name of a pool in file names, from its `meta`."""
    rest = f"{meta.get('label', 'own')}-e{meta['epochs']:g}-s{meta['seed']}"
    return f"{meta['dataset']}-{meta['model']}-d{meta['dim']}-{rest}"


def dataset_meta(data: Dataset) -> dict[str, Any]:
    """Return the entries about the dataset in the first line of a store."""
    return {
        "schema": SCHEMA, "version": VERSION, "grash": __version__, "dataset": data.name,
        "fingerprint": data.unnamed_fingerprint, "n_entities": data.n_entities, "n_relations": data.n_relations,
        "n_train": len(data.train), "n_valid": len(data.valid), "n_test": len(data.test),
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
    """Return the first n configurations of a space. label: its name in file names. fixed: settings not searched."""
    settings = make_settings(
        {
            "models": (model,), "dim": dim, "max_epochs": epochs, "n_trials": n, "seed": seed, "proposals": "random",
            "space": space if isinstance(space, str) else dict(space), "fixed": dict(fixed or {}),
            "scaled_penalties": space != "paper",
        }
    )  # fmt: skip
    configurations = make_configurations(settings, dataset.n_entities, n)
    for c in configurations:
        if c.values["schedule"] in FIXED_LENGTH_SCHEDULES or c.values["training"] == "kvsall":
            raise ConfigError(
                f"Configuration {c.number} has schedule={c.values['schedule']} and training={c.values['training']}, "
                f"and a study reads shorter trainings off a longer one, whose epochs count triples: give a space with "
                f"schedule=constant and without training=kvsall."
            )
    names = [
        label or (space if isinstance(space, str) else "space"),
        *(f"{name}.{value}" for name, value in sorted(settings.fixed.items())),
    ]
    return Pool(dataset, settings, "-".join(names), tuple(configurations))


class StudyGraphs:
    """The subgraphs of a pool; the last few are kept in memory."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.search = SearchGraphs(pool.dataset, pool.settings)  # those of a search with the pool's settings
        self._k_cores = SearchGraphs(pool.dataset, pool.settings.model_copy(update={"reduction": "k-core"}))
        self.graph = lru_cache(maxsize=64 if len(pool.dataset.train) < _SMALL else 2)(self._graph)

    def guard_rails(self) -> dict[str, float]:
        """Return the sizes that the guard rails require here, and the smallest fraction that has them."""
        entities = min_entities(self.search)
        fraction = self.search.smallest_fraction(entities, MIN_VALID)
        return {"n_entities": entities, "n_valid": MIN_VALID, "fraction": fraction}

    def _graph(self, technique: Technique, fraction: float) -> Subgraph:
        data, seed = self.pool.dataset, self.search.split_seed
        match technique:
            case "whole":
                return self.search.subgraph(())
            case "core-order" | "isolated":
                return self.search.subgraph((fraction,), technique == "isolated")
            case "k-core":
                self._k_cores.share_cores(self.search)
                return self._k_cores.subgraph((fraction,))
            case "triples":
                return sample_triples(data, fraction, seed=seed)
            case "walk":
                return random_walks(data, fraction, seed=seed)
            case _:
                return cut_by_walk(data, fraction, Holdout(seed))


def config_on(graph: Subgraph, pool: Pool, number: int, upto: float) -> TrainConfig:
    """Return the training of a configuration on a subgraph for a share of the epochs, scaled as in a search."""
    data, epochs = graph.dataset, upto * pool.settings.max_epochs
    how = data.provenance.get("reduction", {})
    share = graph.target if how.get("reduction") == "core-order" else graph.fraction
    plan = Round(
        number=1, n_trials=1, share=1.0, fidelity=1.0, graph_fraction=share, epoch_fraction=1.0, fractions=(),
        whole=graph.whole, k=graph.k, n_entities=data.n_entities, n_relations=data.n_relations,
        n_train=len(data.train), n_valid=len(data.valid), entity_share=data.n_entities / pool.dataset.n_entities,
        positives=len(data.train), continues=False, cost=0.0, isolated=how.get("isolated", False),
    )  # fmt: skip
    return round_config(pool.config(number), plan, pool.settings).changed(epochs=epochs, valid_every=epochs)
