"""Changes of the default search that a table can judge, each by itself (`--sweep`), and lists of them in YAML files.

The first is the default; the others differ from it in one thing. `rungs` without settings is among them, to show that
it decides as the search does.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from grash.errors import ConfigError
from grash.search.settings import SearchSettings
from grash.yaml_files import read_yaml
from grash_study.methods import RUNS, Method

_SEARCHES = ("grash", "tpe-rounds")  # these take the settings of a search
_MINIMUM = {"n": 1, "eta": 2, "sizes": 1, "batch": 1, "most": 1}
SWEEP: tuple[Method, ...] = (
    Method("default", "grash"),
    Method("n = 16", "grash", {"n_trials": 16}),
    Method("n = 32", "grash", {"n_trials": 32}),
    Method("n = 48", "grash", {"n_trials": 48}),
    Method("n = 96", "grash", {"n_trials": 96}),
    Method("n = 128", "grash", {"n_trials": 128}),
    Method("η = 2", "grash", {"eta": 2}),
    Method("η = 3", "grash", {"eta": 3}),
    Method("η = 8", "grash", {"eta": 8}),
    Method("η = 16", "grash", {"eta": 16}),
    Method("trend 0", "grash", {"trend": 0.0}),
    Method("trend 1/4", "grash", {"trend": 0.25}),
    Method("trend 1", "grash", {"trend": 1.0}),
    Method("random holdout in the last round", "grash", {"last_round_holdout": "random"}),
    Method("guard rails off", "grash", {"guard_rails": False}),
    Method("carry-over off", "grash", {"carry_over": False}),
    Method("variant epoch", "grash", {"variant": "epoch"}),
    Method("variant graph", "grash", {"variant": "graph"}),
    Method("portfolio", "grash", {"how": "portfolio"}),
    Method("second wave of 1/4", "grash", {"how": "waves", "first": 0.75}),
    Method("second wave of 1/2", "grash", {"how": "waves", "first": 0.5}),
    Method("second wave of 1/2, in eights", "grash", {"how": "waves", "first": 0.5, "batch": 8}),
    Method("second wave, epoch", "grash", {"how": "waves", "first": 0.5, "variant": "epoch"}),
    Method("rungs", "rungs"),
    Method("ties, 1 standard error", "rungs", {"ties": 1.0}),
    Method("ties, 2 standard errors", "rungs", {"ties": 2.0}),
    Method("g = f^0, cold", "rungs", {"lean": 0.0}),
    Method("g = f^0, continued", "rungs", {"lean": 0.0, "continues": True}),
    Method("g = f^1/4", "rungs", {"lean": 0.25}),
    Method("g = f^3/4", "rungs", {"lean": 0.75}),
    Method("last round in epochs", "rungs", {"lean": (0.5, 0.5, 0.0)}),
    Method("last two rounds in epochs", "rungs", {"lean": (0.5, 0.0, 0.0), "continues": True}),
    Method("first round in epochs", "rungs", {"lean": (0.0, 0.5, 0.5)}),
    Method("guard rails never take the whole graph", "rungs", {"whole_above": 1.0}),
    Method("guard rail at 4,000 entities", "rungs", {"entities": 4000}),
    Method("guard rail at 8,000 entities", "rungs", {"entities": 8000}),
    Method("shares 1:1:2", "rungs", {"shares": (0.25, 0.25, 0.5)}),
    Method("shares 2:1:1", "rungs", {"shares": (0.5, 0.25, 0.25)}),
    Method("rounds of 64, 8, 2", "rungs", {"sizes": (64, 8, 2)}),
    Method("rounds of 64, 16, 4, 2", "rungs", {"sizes": (64, 16, 4, 2)}),
    Method("rounds of 64, 8, 3", "rungs", {"sizes": (64, 8, 3)}),
)


def read_methods(path: Path) -> tuple[Method, ...]:
    """Return the default, and the methods that a YAML file lists: name, run (default: grash), settings."""
    content = read_yaml(path)
    if not isinstance(content, list):
        raise ConfigError(f"{path} should be a list of methods, e.g. - {{name: more survivors, eta: 3}}.")
    return (SWEEP[0], *(_method(entry, path) for entry in content))


def fitting(methods: Sequence[Method], n: int, *, say: Callable[[str], None] = lambda line: None) -> tuple[Method, ...]:
    """Return the methods for which a pool of n configurations is large enough; `say` which are left out."""
    found = []
    for method in methods:
        n_trials = method.settings.get("n_trials")
        wanted = max(n_trials if isinstance(n_trials, int) else 0, *method.settings.get("sizes", (0,)))
        if wanted <= n:
            found.append(method)
        else:
            say(f"{method.name} is left out: it starts with {wanted} configurations, and the table has {n}.")
    return tuple(found)


def _method(entry: Any, path: Path) -> Method:
    if not isinstance(entry, Mapping) or "name" not in entry or str(entry.get("run", "grash")) not in RUNS:
        raise ConfigError(f"{path}: {entry!r} is not a method: give a name, and as run one of {', '.join(RUNS)}.")
    run = str(entry.get("run", "grash"))
    settings = {k: _hashable(v) for k, v in entry.items() if k not in ("name", "run", "budget")}
    parameters = inspect.signature(RUNS[run], eval_str=True).parameters.values()
    kinds = {p.name: p.annotation for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    known = set(kinds) | (set(SearchSettings.model_fields) if run in _SEARCHES else set())
    for name, value in settings.items():
        if name in kinds:
            _check(path, name, value, kinds[name])
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=2)
            raise ConfigError(
                f"{path}: {name!r} is not a setting of {run}. Did you mean {' or '.join(close or sorted(known))}?"
            )
    budget = entry.get("budget")
    _check(path, "budget", budget, float | None)
    if budget is not None and budget <= 0:
        raise ConfigError(f"{path}: budget={budget} pays for nothing: give a number above 0.")
    return Method(str(entry["name"]), run, settings, budget)


def _check(path: Path, name: str, value: Any, kind: Any) -> None:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        wanted = str(getattr(kind, "__name__", kind)).replace("collections.abc.", "").replace("Sequence", "list")
        raise ConfigError(f"{path}: {name}={value!r} has the wrong type: give {wanted}.") from error
    minimum = _MINIMUM.get(name, 0)
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(v, int | float) and v < minimum for v in values):
        raise ConfigError(f"{path}: {name}={value!r} leaves nothing to search: give {minimum} or more.")


def _hashable(value: Any) -> Any:
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
