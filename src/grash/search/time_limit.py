"""A search within a time: choose its settings from measured speeds, and change the rest of the plan while it runs.

Pure functions: sizes, speeds and seconds in, settings or changes out. `choose_settings` is called once, before the
search; `plan_change` before every later round and the final training. Both results are events of the ledger, so a
resumed search follows the same plan (docs/decisions/0049).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from grash.errors import ConfigError
from grash.evaluation.calibration import ranked_meanwhile
from grash.formatting import format_duration, parse_duration
from grash.kernels.device import compile_seconds
from grash.search.ledger import CLOSEST, SearchState, keeps_finalists
from grash.search.proposals import score_count
from grash.search.schedule import (
    MIN_VALID,
    Graphs,
    least_fraction,
    min_entities,
    plan_next_round,
    round_sizes,
)
from grash.search.settings import SearchSettings
from grash.search.trial import FINAL_VALIDATIONS, FIXED_LENGTH_SCHEDULES, TrialResult
from grash.training.config import make_config

CHOSEN = ("models", "dim", "max_epochs", "n_trials", "eta")  # settings that the time decides unless they are given
MAX_EPOCHS = 300.0  # that a time chooses; final trainings then stop by themselves
_PLANNED_SHARE = 0.9  # of the time: measured speeds are off by a few percent
_RESERVED_SHARE = 0.3  # of the time, which rounds that are late must leave to the final training if it needs that much
_ENDING_SHARE = 0.1  # of the time, that a resumed search gets if nothing is left
_SAVE_SECONDS = 0.5  # model, report and ledger at the end
_LEAST_FINAL = 0.6  # of the epochs: rounds are cut before the final training has fewer
_EPOCHS = (
    0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250,
    300,
)  # fmt: skip


@dataclass(frozen=True)
class TimeLimit:
    """A time in seconds, and when it began (of `time.monotonic`)."""

    seconds: float
    began: float
    compiled: float = 0.0  # `compile_seconds` when it began

    @classmethod
    def of(cls, given: str | float | TimeLimit, began: float | None = None) -> TimeLimit:
        """Return a time that began now, or then."""
        if isinstance(given, TimeLimit):
            return given
        return cls(parse_duration(given), time.monotonic() if began is None else began, compile_seconds())

    def without_compiling(self) -> TimeLimit:
        """Return the same time, begun later by the seconds of compiling since: once per installation."""
        compiled = compile_seconds()
        return TimeLimit(self.seconds, self.began + compiled - self.compiled, compiled)

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)


@dataclass(frozen=True)
class GraphSizes:
    """What of a graph decides how long a search takes."""

    n_entities: int
    n_train: int
    n_valid: int
    n_test: int
    least_fraction: float  # of the triples, in the smallest subgraph that the guard rails allow
    entity_shares: tuple[tuple[float, float], ...]  # fractions of the triples, and of the entities that they contain

    @classmethod
    def of(cls, graphs: Graphs, n_test: int, shares: Iterable[tuple[float, float]]) -> GraphSizes:
        least = least_fraction(graphs, min_entities(graphs), MIN_VALID)
        return cls(graphs.n_entities, graphs.n_train, graphs.shape((1.0,)).n_valid, n_test, least, tuple(shares))

    def fraction(self, fidelity: float, epochs: float) -> float:
        """Return the graph fraction of a round: √f, inside the guard rails."""
        return min(1.0, max(math.sqrt(fidelity), self.least_fraction), max(fidelity * epochs, 1e-9))

    def entity_share(self, fraction: float) -> float:
        """Return the share of the entities in a subgraph, as that of the next larger one that is known."""
        if fraction >= 1:
            return 1.0
        at = bisect_left(self.entity_shares, (fraction, 0.0))
        return self.entity_shares[at][1] if at < len(self.entity_shares) else 1.0

    def valid_triples(self, fraction: float) -> float:
        return self.n_valid if fraction >= 1 else min(0.2 * fraction * self.n_train, 5000.0)


@dataclass(frozen=True)
class Speed:
    """Seconds that a trial of one model takes, measured: per positive triple, and per ranked triple."""

    positive: float  # in any case
    per_dim: float  # for every float of a row
    per_score: float  # for every score and float
    rank: float  # of a triple, for every entity and float

    def train(self, dim: int, scores: float) -> float:
        """Return the seconds of a positive. scores: per positive."""
        return self.positive + dim * (self.per_dim + scores * self.per_score)

    def scaled(self, *, train: float = 1.0, rank: float = 1.0) -> Speed:
        return Speed(train * self.positive, train * self.per_dim, train * self.per_score, rank * self.rank)

    def validate(self, n_triples: float, n_entities: float, dim: int) -> float:
        return self.rank * n_triples * n_entities * dim


@dataclass(frozen=True)
class Machine:
    """What was measured, and how trials would run."""

    name: str  # e.g. "2 CPU cores"
    speeds: dict[str, Speed]  # by model, of a trial of a round
    final_factor: float = 1.0  # seconds of the final training, relative to a trial of a round with as many triples
    workers: int = 1  # trials at a time in the rounds
    threads: int = 1
    final_threads: int = 1
    start_seconds: float = 0.0  # before the first trial runs
    trial_seconds: float = 0.05  # of a trial, beside steps and validations
    max_dim: int = 1_000_000  # with which the final training fits into memory
    engine: str = "auto"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Machine:
        return cls(**{**content, "speeds": {model: Speed(**speed) for model, speed in content["speeds"].items()}})


@dataclass(frozen=True)
class Level:
    """How thorough a search is. A time gets the highest level whose least epochs fit."""

    dim: int
    n_trials: int
    budget: float
    least_epochs: float
    models: tuple[str, ...] = ("complex",)


SEVERAL_MODELS_FROM = 600.0  # seconds: with less, other models are not measured unless they are given
LEVELS = (
    Level(32, 1, 1.0, 0.1),
    Level(64, 1, 1.0, 5.0),
    Level(64, 4, 1.0, 10.0),
    Level(128, 4, 1.0, 20.0),
    Level(128, 8, 1.5, 25.0),
    Level(128, 16, 2.0, 30.0),
    Level(128, 32, 3.0, 50.0),
    Level(128, 64, 3.0, 80.0),
    Level(256, 64, 3.0, 80.0),
    Level(512, 64, 3.0, 80.0),
    Level(512, 96, 3.0, 100.0, ("complex", "rotate")),
    Level(512, 128, 3.0, 100.0, ("complex", "rotate", "transe")),
)


def measured_models(seconds: float, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the models whose speeds `choose_settings` needs."""
    if "models" in given:
        return tuple(given["models"])
    return LEVELS[-1].models if seconds >= SEVERAL_MODELS_FROM else LEVELS[0].models


@dataclass(frozen=True)
class Choice:
    """The settings that a time allows, and how long the parts of the search are expected to take."""

    level: int
    settings: dict[str, Any]
    machine: Machine
    seconds: dict[str, float]  # by part of the search, in its order
    time: float  # that was given
    used: float  # seconds of it before the search: reading the graph and measuring
    given: tuple[str, ...]  # settings that were not chosen
    cut: tuple[str, ...]  # what a search without a limit would have more of
    compiled: float = 0.0  # seconds of compiling before the search, which are not part of the time
    epoch: float = 0.0  # expected seconds of an epoch of the first model on the full graph
    validation: float = 0.0  # and of ranking valid

    @property
    def planned(self) -> float:
        return self.used + sum(self.seconds.values())

    @property
    def limit(self) -> float:
        """The time, or more if too little of it is left for the smallest search."""
        return max(self.time, self.planned / _PLANNED_SHARE)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the event `time_planned`."""
        kept = ("time", "limit", "used", "compiled", "settings", "given", "seconds", "cut")
        return {**{name: getattr(self, name) for name in kept}, "machine": asdict(self.machine)}

    def sentences(self) -> list[str]:
        """Return what was chosen and why, in sentences."""
        s, machine = self.settings, self.machine
        parts = ", ".join(f"{name} {format_duration(value)}" for name, value in self.seconds.items() if value >= 0.05)
        trials = f"{s['n_trials']} configurations" if s["n_trials"] > 1 else "1 configuration, the best published one"
        lines = [
            f"time: {format_duration(self.time)}; {format_duration(self.used)} went to reading the graph and measuring "
            f"this machine ({machine.name}){self._start_sentence()}",
            f"measured: about {format_duration(self.epoch)} for an epoch of {s['models'][0]} with dim {s['dim']} on "
            f"the full graph, {format_duration(self.validation)} to rank valid",
            f"chosen: {', '.join(s['models'])}, dim {s['dim']}, {s['max_epochs']:g} epochs, {trials}",
        ]
        if self.limit > self.time:
            limit = format_duration(self.limit)
            lines.append(
                f"late: {format_duration(self.time)} is too short, the smallest search ends after about {limit}"
            )
        else:
            lines.append(f"planned: {parts}; {format_duration(self.planned)} of {format_duration(self.time)} in all")
        return lines + ([f"cut, compared with a search without a limit: {', '.join(self.cut)}"] if self.cut else [])

    def _start_sentence(self) -> str:
        if self.compiled < 1:
            return ""
        return f". Compiling took {format_duration(self.compiled)} more, which do not count: they are needed only once"


def choose_settings(
    seconds: float,
    sizes: GraphSizes,
    machines: Sequence[Machine],
    scores: Mapping[str, Sequence[float]],
    given: Mapping[str, Any] | None = None,
    *,
    used: float = 0.0,
    compiled: float = 0.0,
    final_train: bool = True,
    n_initial: int = 0,
    too_slow: Collection[str] = (),
) -> Choice:
    """Return the most thorough search that is expected to end within the time.

    machines: ways to run trials here, of which one is chosen. scores: by model, per positive, of its configurations
    in their order. given: settings of the user, among CHOSEN. used: seconds of the time that have passed. compiled:
    seconds before the search that do not count. n_initial: configurations of the user, which all enter the first
    round. too_slow: models that no level has. If only the seconds used are too many, the smallest search is chosen, and
    ends late.
    """
    given, best = dict(given or {}), None
    planned = _PLANNED_SHARE * seconds - used
    for machine in machines:
        for number, level in enumerate(LEVELS):
            settings = _settings_of(level, given, machine, n_initial, too_slow)
            if any(model not in machine.speeds for model in settings["models"]):
                continue
            for epochs in _possible_epochs(level, settings, given, sizes):
                settings = {**settings, "max_epochs": float(epochs)}
                parts = estimate(settings, sizes, machine, scores, final_train=final_train)
                if sum(parts.values()) > planned:
                    break
                cut = _cut(settings, given)
                found = Choice(number, settings, machine, parts, seconds, used, tuple(given), cut, compiled)
                if best is None or (number, epochs) > (best.level, best.settings["max_epochs"]):
                    best = found
    if best is not None:
        return _with_speeds(best, sizes, scores)
    smallest = []
    for machine in machines:
        settings = _settings_of(LEVELS[0], given, machine, n_initial, too_slow)
        if all(model in machine.speeds for model in settings["models"]):
            settings["max_epochs"] = given.get("max_epochs", _EPOCHS[0])
            parts, cut = estimate(settings, sizes, machine, scores, final_train=final_train), _cut(settings, given)
            smallest.append(Choice(0, settings, machine, parts, seconds, used, tuple(given), cut, compiled))
    best = min(smallest, key=lambda choice: choice.planned)
    if sum(best.seconds.values()) > _PLANNED_SHARE * seconds:
        raise ConfigError(_too_short(best, given))
    return _with_speeds(best, sizes, scores)


def _with_speeds(choice: Choice, sizes: GraphSizes, scores: Mapping[str, Sequence[float]]) -> Choice:
    model, dim = choice.settings["models"][0], choice.settings["dim"]
    speed = choice.machine.speeds[model]
    epoch = choice.machine.final_factor * sizes.n_train * speed.train(dim, scores[model][0])
    return replace(choice, epoch=epoch, validation=speed.validate(sizes.n_valid, sizes.n_entities, dim))


def estimate(
    settings: Mapping[str, Any],
    sizes: GraphSizes,
    machine: Machine,
    scores: Mapping[str, Sequence[float]],
    *,
    final_train: bool = True,
) -> dict[str, float]:
    """Return the expected seconds of each part of a search, as if its expensive configurations won."""
    models, dim, n, epochs = settings["models"], settings["dim"], settings["n_trials"], settings["max_epochs"]
    trials = []
    for i in range(n):
        model = models[i % len(models)]
        trials.append((machine.speeds[model], scores[model][min(i // len(models), len(scores[model]) - 1)]))
    rank = max(machine.speeds[model].rank for model in models)
    counts = round_sizes(n, settings["eta"])

    def trial(share: float, count: int, positives: float, n_ranked: float) -> float:
        """Mean seconds of the `count` most expensive trials on a graph with a share of the entities."""
        costs = sorted((speed.train(dim, share * each) for speed, each in trials), reverse=True)[:count]
        return positives * sum(costs) / count + rank * n_ranked * share * sizes.n_entities * dim + machine.trial_seconds

    parts = {"start": machine.start_seconds if counts else 0.0, "rounds": 0.0, "finalists": 0.0}
    for i, count in enumerate(counts):
        fidelity = min(1.0, settings["budget"] / len(counts) / count)
        fraction = sizes.fraction(fidelity, epochs)
        n_ranked = (4 if i == len(counts) - 1 else 2) * sizes.valid_triples(fraction)
        each = trial(sizes.entity_share(fraction), count, fidelity * epochs * sizes.n_train, n_ranked)
        parts["rounds"] += -(-count // machine.workers) * each
        if i == len(counts) - 1 and fraction < 1 and sizes.n_valid >= MIN_VALID:
            # compared after a quarter of the last round's epochs, the closest again after all of them
            quarter, stages = fidelity * epochs / fraction / 4, [(4, 1, 1)]
            if keeps_finalists(sizes.n_entities, dim):
                stages.append((min(4, max(CLOSEST, len(models) + 1)), 3, 4))
            for most, quarters, n_validations in stages:
                number = min(most, count)
                each = trial(1.0, number, quarters * quarter * sizes.n_train, n_validations * sizes.n_valid)
                parts["finalists"] += -(-number // machine.workers) * each
    if final_train:
        n_ranked = FINAL_VALIDATIONS * sizes.n_valid
        parts["final training"] = machine.final_factor * trial(1.0, 1, epochs * sizes.n_train, n_ranked)
        n_ranked = sizes.n_test + ranked_meanwhile(sizes.n_valid)
        parts["test"] = rank * n_ranked * sizes.n_entities * dim + _SAVE_SECONDS
    return parts


def plan_change(
    state: SearchState, settings: SearchSettings, graphs: Graphs, action: Any, left: float
) -> dict[str, Any] | None:
    """Return the fields of `plan_changed` before this action; None if the plan stays.

    action: what `next_action` returned. left: seconds until the time is over.
    """
    if isinstance(action, dict) and action["event"] == "search_finished" and action["failed"]:
        return _without_last_round(state)
    opens_round = isinstance(action, dict) and action["event"] == "round_opened"
    trains = not isinstance(action, dict) and action is not None and action.round == 0
    if trains and state.final_epochs is None:
        return _final_change(state, settings, left)
    if opens_round and 0 < len(state.rounds) > state.changed_after:
        return _rounds_change(state, settings, graphs, left)
    return None


def rounds_end(state: SearchState, settings: SearchSettings, time_limit: float) -> float:
    """Return the second at which rounds that are late have to end, unless they train finalists to the end.

    The rest is for the final training, as much as it is expected to need or 30 % of the time.
    """
    if not settings.final_train:
        return time_limit
    reserved, per_epoch = _RESERVED_SHARE * state.time_given, _final_epoch_seconds(state, None)
    if per_epoch is None:
        return time_limit - reserved
    needed = settings.max_epochs * per_epoch + _test_seconds(state)
    return time_limit - min(reserved, needed / _PLANNED_SHARE)


def final_seconds(state: SearchState, left: float) -> float:
    """Return the seconds that trainings to the end may take, so that test, calibration and files still fit."""
    return max(0.0, left - _test_seconds(state))


def resumed_limit(given: float, elapsed: float) -> float:
    """Return when the time of a resumed search ends: as given, or with a tenth of it to end the search."""
    return max(given, elapsed + _ENDING_SHARE * given)


def _settings_of(
    level: Level, given: Mapping[str, Any], machine: Machine, n_initial: int, too_slow: Collection[str]
) -> dict[str, Any]:
    """Return the settings of a level, with those of the user, and with a dimension that fits into memory."""
    fast = tuple(model for model in LEVELS[-1].models if model not in too_slow)
    models = tuple(model for model in level.models if model in fast) or fast[:1]
    n_trials = max(level.n_trials, n_initial)
    dim = min(level.dim, machine.max_dim)
    chosen = {"models": models, "dim": dim, "n_trials": n_trials, "eta": 4, **given}
    threads = {"threads": machine.threads, "final_threads": machine.final_threads}
    return {**chosen, "models": tuple(chosen["models"]), "budget": level.budget, **threads}


def _possible_epochs(
    level: Level, settings: Mapping[str, Any], given: Mapping[str, Any], sizes: GraphSizes
) -> Sequence[float]:
    """Return the epochs that a level may have: in its first round, a trial sees its graph once."""
    n, counts = settings["n_trials"], round_sizes(settings["n_trials"], settings["eta"])
    needed = 0.0 if "n_trials" in given else n * len(counts) * sizes.least_fraction / settings["budget"]
    if "max_epochs" in given:
        return [given["max_epochs"]] if needed <= given["max_epochs"] else []
    return [epochs for epochs in _EPOCHS if epochs >= max(needed, level.least_epochs)]


def _cut(settings: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is less than the defaults, and was not given."""
    cut = []
    for name, words in (("dim", "dim {} instead of {}"), ("max_epochs", "{:g} epochs instead of {:g}"),
                        ("n_trials", "{} of {} configurations")):  # fmt: skip
        usual = SearchSettings.model_fields[name].default
        if settings[name] < usual and name not in given:
            cut.append(words.format(settings[name], usual))
    if settings["n_trials"] == 1 and "n_trials" not in given:
        cut.append("all rounds")
    elif settings["budget"] < SearchSettings.model_fields["budget"].default:
        cut.append(f"a budget of {settings['budget']:g} instead of 3 full runs for the rounds")
    return tuple(cut)


def _too_short(smallest: Choice, given: Mapping[str, Any]) -> str:
    """Return the sentence of an error: how much time the smallest search would need."""
    least = format_duration(math.ceil(smallest.planned / _PLANNED_SHARE))
    fixed = ", ".join(f"{name}={given[name]}" for name in CHOSEN if name in given)
    what = f"a search with {fixed}" if fixed else "the smallest search"
    more = " or leave out some of these settings" if fixed else ""
    return (
        f"time={smallest.time:g} (seconds) is too short: on this machine and graph, {what} takes about {least}. "
        f"Give {least} or more{more}."
    )


def _without_last_round(state: SearchState) -> dict[str, Any] | None:
    """Return the change after a round in which every trial was stopped for lack of time: the round before decides."""
    last = len(state.rounds)
    if not last or not any(result.status == "timeout" for result in state.rounds[-1].results.values()):
        return None
    if len(state.sizes) < last:
        return None  # that is so already: another reason
    best = "the best of the round before wins" if last > 1 else "the first configuration wins untested"
    return {"sizes": state.sizes[: last - 1], "why": [f"no trial of round {last} ended in time: {best}"]}


def _final_change(state: SearchState, settings: SearchSettings, left: float) -> dict[str, Any]:
    """Return the epochs of the final training. If the time ends before, it ends with its best weights so far.

    A learning rate whose schedule depends on the number of epochs has only as many as are expected to fit.
    """
    epochs, given = settings.max_epochs, "max_epochs" in state.time_plan["given"]
    per_epoch = _final_epoch_seconds(state, state.winner)
    if per_epoch is None or state.winner is None:
        return {"final_epochs": epochs, "why": []}
    most = epochs if given else max(epochs, MAX_EPOCHS)
    if _ended_by_itself(state, state.winner):
        return {"final_epochs": epochs, "why": []}
    more = final_seconds(state, left) / per_epoch
    if _cannot_start_again(state, state.winner, more):
        kept = "final training: keeps the weights of the comparison, because the time is too short to start again"
        return {"final_epochs": epochs, "final_continues": True, "why": [kept]}
    fitting = min(most, max(0.01, _epochs_before(state, state.winner) + more))
    fitting = max(_round_down(fitting), epochs if fitting >= epochs else 0.0)
    if fitting > epochs:
        return {
            "final_epochs": fitting,
            "why": [f"final training: up to {fitting:g} epochs instead of {epochs:g}, because time is left"],
        }
    if fitting == epochs:
        return {"final_epochs": epochs, "why": []}
    why = [f"final training: up to {epochs:g} epochs, about {fitting:g} expected until the time is over"]
    return {"final_epochs": fitting if _has_fixed_length(state, state.winner) else epochs, "why": why}


def _ended_by_itself(state: SearchState, winner: int) -> bool:
    """Return whether a winner that was trained to the end stopped early, or has a learning rate that ends there."""
    compared = state.continued_by_final(winner)
    if compared is None or not compared.plan.to_the_end:
        return False
    early = compared.ended_at(winner) < 0.999 * compared.plan.epochs and not compared.results[winner].out_of_time
    return early or _has_fixed_length(state, winner)


def _cannot_start_again(state: SearchState, winner: int, epochs: float) -> bool:
    """Return whether a winner that was trained to the end was better before, but so many epochs do not lead there."""
    last = state.last_comparison(winner)
    if last is None or not last.plan.to_the_end or state.continued_by_final(winner) is not None:
        return False
    return epochs < state.rounds[last.plan.number - 2].plan.epochs


def _has_fixed_length(state: SearchState, number: int) -> bool:
    """Return whether a training cannot be continued, since its learning rate depends on its number of epochs."""
    return state.configurations[number].values.get("schedule") in FIXED_LENGTH_SCHEDULES


def _epochs_before(state: SearchState, winner: int) -> float:
    """Return the epochs of the saved state that the final training is expected to continue from."""
    compared, values = state.continued_by_final(winner), state.configurations[winner].values
    if compared is None:
        return 0.0
    return compared.ended_at(winner) if keeps_finalists(compared.plan.n_entities, make_config(values).dim) else 0.0


def _rounds_change(state: SearchState, settings: SearchSettings, graphs: Graphs, left: float) -> dict[str, Any] | None:
    """Return the least change with which the rest of the rounds leaves the final training enough epochs."""
    number, n_halving = len(state.rounds) + 1, len(round_sizes(state.planned_trials, settings.eta))
    per_epoch = _final_epoch_seconds(state, None)
    if per_epoch is None:
        return None
    needed = _LEAST_FINAL * settings.max_epochs * per_epoch * settings.final_train
    usable, planned = final_seconds(state, left), state.planned_sizes
    halving = planned[:n_halving]
    until_late = rounds_end(state, settings, left)  # then trials are not run any more
    fewer = [(planned[:n], 1.0) for n in range(len(planned), n_halving, -1)]  # comparisons of finalists
    options = (*fewer, (halving, 1.0), (halving, 0.5), (halving, 1 / settings.eta))
    for sizes, share in options:
        if share < 1 and _repeats_last_round(state, settings, graphs, share):
            continue
        rest, training = _rest_of_rounds(state, settings, graphs, sizes, share), needed
        if state.trains_to_the_end(len(sizes)):  # then nothing is left for the final training (decision 0062)
            before = _rest_of_rounds(state, settings, graphs, sizes[:-1], share)
            rest, training = before, (rest - before) / _PLANNED_SHARE
        if rest + training <= usable and rest <= max(0.0, until_late):
            return _described(state, number, sizes, share, n_halving)
    why = f"rounds end after round {number - 1}: the rest of the time is for the final training"
    return {"round": number, "sizes": state.sizes[: number - 1], "why": [why]}


def _repeats_last_round(state: SearchState, settings: SearchSettings, graphs: Graphs, share: float) -> bool:
    """Return whether trials of the next round would be about as long as the last ones, so that nothing is learned."""
    return share * plan_next_round(state, settings, graphs).positives < 1.2 * state.rounds[-1].plan.positives


def _described(
    state: SearchState, number: int, sizes: list[int], share: float, n_halving: int
) -> dict[str, Any] | None:
    why, n, end = [], len(sizes), ", to end in time"
    if n != len(state.sizes):
        ways = ("not compared", "compared only once", "compared but not trained to the end")
        way = "trained to the end" if state.trains_to_the_end(n) else ways[n - n_halving + 2 * state.last_is_whole]
        why.append(
            f"finalists are {way} on the full graph{end if n < len(state.sizes) else ' after all: time is left'}"
        )
    share *= (before := state.shares.get(number, 1.0))  # of earlier changes
    if share < before:
        why.append(f"rounds from {number} on have {share:.0%} of their budget{end}")
    return {"round": number, "sizes": sizes, "share": share, "why": why} if why else None


def _rest_of_rounds(
    state: SearchState, settings: SearchSettings, graphs: Graphs, sizes: list[int], share: float
) -> float:
    """Return the expected seconds of the rounds that are not open yet, at the pace of the last one."""
    number, n_halving = len(state.rounds) + 1, len(round_sizes(state.planned_trials, settings.eta))
    if number > len(sizes):
        return 0.0
    machine, following, total = _machine(state), plan_next_round(state, settings, graphs), 0.0
    entrants = state.survivors(number - 1, state.entrants(number - 1))
    for this in range(number, len(sizes) + 1):
        count, n_entities, n_valid, before = sizes[this - 1], graphs.n_entities, state.dataset["n_valid"], 0
        full = settings.max_epochs * graphs.n_train
        if this == number:
            n_entities, n_valid, positives = following.n_entities, following.n_valid, float(following.positives)
            before = state.rounds[-1].plan.positives if following.continues else 0
            n_validations = following.n_validations
        elif this <= n_halving:
            positives = state.shares.get(this, 1.0) * min(1.0, settings.budget / n_halving / count) * full
            n_validations = 4 if this == n_halving else 2
        else:
            n_validations = FINAL_VALIDATIONS // 2 if state.trains_to_the_end(this) else (1, 4)[this - n_halving - 1]
            positives = state.expected_cost(this) * full
        new = {n: share * (positives - (0 if _has_fixed_length(state, n) else before)) for n in entrants}
        each = [_expected(state, n, n_entities, new[n], n_validations * n_valid) for n in entrants]
        dearest = sorted(each, reverse=True)[:count]
        waves = float(-(-count // machine.workers))
        if state.trains_to_the_end(this):  # together in the threads of the final training; on a GPU, as one alone
            waves = max(machine.final_factor, min(waves, count * machine.final_factor))
        total += waves * (sum(dearest) / len(dearest) + machine.trial_seconds)
    return total * _pace(state)


def _final_epoch_seconds(state: SearchState, winner: int | None) -> float | None:
    """Return the expected seconds of an epoch of the final training, with its validations. Without a winner: of the
    most expensive of the best configurations."""
    dataset, machine = state.dataset, _machine(state)
    numbers = [winner] if winner is not None else []
    if closed := [past for past in state.rounds if past.survivors is not None]:
        numbers = numbers or closed[-1].best(4)
    if not numbers:
        return None
    n_ranked = dataset["n_valid"] * FINAL_VALIDATIONS / state.settings["max_epochs"]
    each = [
        _expected(state, n, dataset["n_entities"], dataset["n_train"], n_ranked) * _slowness(state, n) for n in numbers
    ]
    return machine.final_factor * max(each)


def _expected(state: SearchState, number: int, n_entities: int, positives: float, n_ranked: float) -> float:
    """Return the seconds that the measured speeds predict for a configuration."""
    config = make_config(state.configurations[number].values)
    speed = _machine(state).speeds[config.model]
    share = n_entities / max(1, state.dataset["n_entities"])
    scores = score_count(config, state.dataset["n_entities"]) / config.dim
    return positives * speed.train(config.dim, share * scores) + speed.validate(n_ranked, n_entities, config.dim)


def _slowness(state: SearchState, number: int) -> float:
    """Return how much longer than predicted the configuration has taken in its last round; 1 if unknown."""
    for past in reversed(state.rounds):
        result = past.results.get(number)
        if result is not None and result.status == "ok" and result.seconds > 0:
            return min(20.0, max(0.05, result.seconds / max(1e-9, _predicted(state, past.plan, result))))
    return 1.0


def _pace(state: SearchState) -> float:
    """Return how much longer than predicted the trials of the last round have taken together."""
    past = state.rounds[-1]
    done = [result for result in past.results.values() if result.status == "ok" and result.seconds > 0]
    predicted = sum(_predicted(state, past.plan, result) for result in done)
    return min(20.0, max(0.05, sum(r.seconds for r in done) / predicted)) if predicted > 0 else 1.0


def _predicted(state: SearchState, plan: Any, result: TrialResult) -> float:
    n_ranked = plan.n_valid * plan.n_validations
    return _machine(state).trial_seconds + _expected(state, result.number, plan.n_entities, result.positives, n_ranked)


def _test_seconds(state: SearchState) -> float:
    """Return the expected seconds of test and calibration, at the pace of the last round, and of writing the model."""
    seconds = float(state.time_plan["seconds"].get("test", _SAVE_SECONDS))
    pace = _pace(state) if state.rounds else 1.0
    return _SAVE_SECONDS + max(1.0, pace) * max(0.0, seconds - _SAVE_SECONDS)


def _machine(state: SearchState) -> Machine:
    return Machine.from_json(state.time_plan["machine"])


def _round_down(epochs: float) -> float:
    """Return a number of epochs with at most two digits that is not larger."""
    unit = 10.0 ** (math.floor(math.log10(epochs)) - 1)
    return round(math.floor(epochs / unit + 1e-9) * unit, 10)
