"""Changes of the default search that a table can judge, each by itself: what `grash study methods --sweep` compares.

The first is the default as it is; the others differ from it in one thing. `rungs` is the laboratory (methods/rungs.py),
and its plain form stands here too, so that it can be seen to decide as the search does.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from grash.errors import ConfigError
from grash.search.settings import SearchSettings
from grash.yaml_files import read_yaml
from grash_study.methods import RUNS, Method

_SEARCHES = ("grash", "tpe-rounds")  # which take the settings of a search
_LEAST = {"n": 1, "eta": 2, "sizes": 1, "batch": 1, "most": 1}
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
    Method("last round holds out any", "grash", {"last_round_holdout": "random"}),
    Method("rails off", "grash", {"guard_rails": False}),
    Method("carry off", "grash", {"carry_over": False}),
    Method("variant epoch", "grash", {"variant": "epoch"}),
    Method("variant graph", "grash", {"variant": "graph"}),
    Method("portfolio", "grash", {"how": "portfolio"}),
    Method("second wave of 1/4", "grash", {"how": "waves", "first": 0.75}),
    Method("second wave of 1/2", "grash", {"how": "waves", "first": 0.5}),
    Method("second wave of 1/2, in eights", "grash", {"how": "waves", "first": 0.5, "batch": 8}),
    Method("second wave, epoch", "grash", {"how": "waves", "first": 0.5, "variant": "epoch"}),
    Method("laboratory", "rungs"),
    Method("ties, 1 standard error", "rungs", {"ties": 1.0}),
    Method("ties, 2 standard errors", "rungs", {"ties": 2.0}),
    Method("g = f^0, cold", "rungs", {"lean": 0.0}),
    Method("g = f^0, continued", "rungs", {"lean": 0.0, "continues": True}),
    Method("g = f^1/4", "rungs", {"lean": 0.25}),
    Method("g = f^3/4", "rungs", {"lean": 0.75}),
    Method("last round in epochs", "rungs", {"lean": (0.5, 0.5, 0.0)}),
    Method("last two rounds in epochs", "rungs", {"lean": (0.5, 0.0, 0.0), "continues": True}),
    Method("first round in epochs", "rungs", {"lean": (0.0, 0.5, 0.5)}),
    Method("rails never take the whole graph", "rungs", {"whole_above": 1.0}),
    Method("rail at 4,000 entities", "rungs", {"entities": 4000}),
    Method("rail at 8,000 entities", "rungs", {"entities": 8000}),
    Method("shares 1:1:2", "rungs", {"shares": (0.25, 0.25, 0.5)}),
    Method("shares 2:1:1", "rungs", {"shares": (0.5, 0.25, 0.25)}),
    Method("rounds of 64, 8, 2", "rungs", {"sizes": (64, 8, 2)}),
    Method("rounds of 64, 16, 4, 2", "rungs", {"sizes": (64, 16, 4, 2)}),
    Method("rounds of 64, 8, 3", "rungs", {"sizes": (64, 8, 3)}),
)


def read_methods(path: Path) -> tuple[Method, ...]:
    """The default, and the methods that a YAML file lists: name, run (grash if left out), and settings beside them."""
    content = read_yaml(path)
    if not isinstance(content, list):
        raise ConfigError(f"{path} should list methods, as in: - {{name: more survivors, eta: 3}}.")
    return (SWEEP[0], *(_method(entry, path) for entry in content))


def fitting(methods: Sequence[Method], n: int, *, tell: Callable[[str], None] | None = None) -> tuple[Method, ...]:
    """Those that a pool of n configurations has enough for; of the others it is told that they are left out."""
    found = []
    for method in methods:
        wanted = _wanted(method)
        if wanted <= n:
            found.append(method)
        elif tell is not None:
            tell(f"{method.name} is left out: it begins with {wanted} configurations, and the table has {n}.")
    return tuple(found)


def _wanted(method: Method) -> int:
    n_trials = method.settings.get("n_trials")  # what is no number is refused by the search's own check
    return max(n_trials if isinstance(n_trials, int) else 0, *method.settings.get("sizes", (0,)))


def _method(entry: Any, path: Path) -> Method:
    if not isinstance(entry, Mapping) or "name" not in entry or str(entry.get("run", "grash")) not in RUNS:
        raise ConfigError(f"{path}: {entry!r} is no method: give a name, and as run one of {', '.join(RUNS)}.")
    settings = {k: _hashable(v) for k, v in entry.items() if k not in ("name", "run", "budget")}
    run = str(entry.get("run", "grash"))
    kinds = _kinds(run)
    known = set(kinds) | (set(SearchSettings.model_fields) if run in _SEARCHES else set())
    for name, value in settings.items():
        if name in kinds:
            _check_kind(path, name, value, kinds[name])
            _check_least(path, name, value)
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=2)
            raise ConfigError(
                f"{path}: {name!r} is no setting of {run}. Did you mean {' or '.join(close or sorted(known))}?"
            )
    budget = entry.get("budget")
    _check_kind(path, "budget", budget, float | None)
    if budget is not None and budget <= 0:
        raise ConfigError(f"{path}: budget={budget} buys nothing: give a number above 0.")
    return Method(str(entry["name"]), run, settings, budget)


def _kinds(run: str) -> dict[str, Any]:
    """The settings of a method by itself, with their types."""
    named = inspect.signature(RUNS[run], eval_str=True).parameters.values()
    return {p.name: p.annotation for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _check_kind(path: Path, name: str, value: Any, kind: Any) -> None:
    if not _is_kind(value, kind):
        words = str(getattr(kind, "__name__", kind)).replace("collections.abc.", "").replace("Sequence", "list")
        raise ConfigError(f"{path}: {name}={value!r} is of another kind: give {words}.")


def _check_least(path: Path, name: str, value: Any) -> None:
    values = value if isinstance(value, tuple) else (value,)
    least = _LEAST.get(name, 0)
    if any(isinstance(v, int | float) and v < least for v in values):
        raise ConfigError(f"{path}: {name}={value!r} leaves nothing to search: give {least} or more.")


def _is_kind(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_is_kind(value, one) for one in get_args(kind))
    if get_origin(kind) is Sequence:
        return isinstance(value, tuple) and len(value) > 0 and all(_is_kind(v, get_args(kind)[0]) for v in value)
    if isinstance(value, bool) or kind in (bool, None, NoneType, str):
        return isinstance(value, NoneType if kind is None else kind)
    return isinstance(value, int | float if kind is float else kind)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value
