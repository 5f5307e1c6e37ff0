"""Which real searches are missing, and about how long they take: by those that this device has run, else by a probe.

Comes from confirm.py, before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from grash.data.dataset import Dataset
from grash.engines.device import choose_device
from grash.study.confirm import OpenSearch, Wanted, folder_of, opened
from grash.study.store import Store
from grash.study.train import device_words

_LIKE = ("models", "dim", "max_epochs", "budget")  # what the time of a search depends on most


def plan_wanted(
    dataset: Dataset, wanted: Sequence[Wanted], store: Store, open_search: OpenSearch, *, device: str = "auto"
) -> str:
    """Lines for a person. Where no search of a model, dimension, E and B is known on this device, one is probed."""
    missing = [one for one in wanted if one.name not in store.searches]
    lines = [f"{store.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} searches are there"]
    words, total = device_words(choose_device(device)), 0.0
    probed: dict[str, float] = {}
    for one in (one for one in missing if one.seed == min(m.seed for m in missing if _column(m) == _column(one))):
        count = sum(_column(m) == _column(one) for m in missing)
        seconds = _known(one, store, words)
        if seconds is None:
            key = repr(_of(one.settings.model_dump(mode="json"), _LIKE))
            if key not in probed:
                planned = opened(open_search, dataset, one, folder_of(store, one), device=device).plan()
                probed[key] = planned.seconds or 0.0
            seconds = probed[key]
        total += count * seconds
        lines.append(f"  {one.model}, {one.candidate.name}: {count} of about {seconds:,.0f} s with final training")
    return "\n".join([*lines, f"about {total:,.0f} s of {words} in all"] if missing else lines)


def _known(one: Wanted, store: Store, words: str) -> float | None:
    """Mean seconds of the searches that differ in the seed only, or else of those that are alike in the main."""
    ours = one.settings.model_dump(mode="json")
    mine = [r for r in store.searches.values() if r["device"] == words]
    for names in (tuple(n for n in ours if n != "seed"), _LIKE):
        alike = [r for r in mine if _of(r["settings"], names) == _of(ours, names)]
        if alike:
            return mean(r["seconds"] + r["final_seconds"] for r in alike)
    return None


def _column(one: Wanted) -> tuple[str, str]:
    return one.model, one.candidate.name


def _of(settings: dict[str, Any], names: Sequence[str]) -> list[Any]:
    return [settings.get(name) for name in names]
