"""What a result means, in sentences and rows that the command line and the report share.

Everything is a function of an evaluation as a dictionary (`Evaluation.to_dict`), a history of validations, or the
state of a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grash.formatting import format_duration
from grash.search.ledger import SearchState
from grash.search.trial import FIXED_LENGTH_SCHEDULES

if TYPE_CHECKING:
    from grash.data.arrays import Triples
    from grash.data.dataset import Dataset
    from grash.training.config import TrainConfig

RUN_FIELDS = ("epochs", "valid_every", "patience", "seed", "variation")  # of no configuration
FILTERS = (
    "Test is filtered by train, valid and test, valid only by train and valid, so that test triples influence no "
    "choice. The test MRR is therefore often higher."
)
_NO_BETTER = (
    "The model is no better than the baseline, which only counts frequent answers.\n"
    "Train it longer, search with more time or other models, or add triples."
)


def early_stop(history: list[dict[str, Any]], config: TrainConfig) -> str:
    """Return where and why a training stopped before its planned epochs; nothing if it did not."""
    if config.patience is None or not history:
        return ""
    best, last = max(history, key=lambda v: v.get("score", v["mrr"])), history[-1]
    waited = sum(v["step"] > best["step"] for v in history)
    if waited < config.patience or round(last["epoch"], 2) >= round(config.epochs, 2):
        return ""
    since = f"no better validation since epoch {best['epoch']:.4g} (valid MRR {best['mrr']:.4f})"
    return f"training stopped at epoch {last['epoch']:.4g} of {config.epochs:g}: {since}"


def final_stop(state: SearchState, config: TrainConfig) -> str:
    """Return where and why the final training stopped before its planned epochs; nothing if it did not."""
    if state.final is None or not state.final.history:
        return ""
    epochs, last = state.final_epochs or config.epochs, state.final.history[-1]["epoch"]
    early = early_stop(state.final.history, config.changed(epochs=epochs))
    if early or state.time_limit is None or round(last, 2) >= round(epochs, 2):
        return early
    return f"training stopped at epoch {last:.4g} of {epochs:g}: the time was over"


def starts_again(state: SearchState) -> str:
    """Return why the final training does not continue from the comparison of finalists; nothing if it does."""
    past = None if state.winner is None else state.last_comparison(state.winner)
    if past is None or state.winner is None or not state.settings.get("final_train", True):
        return ""
    if state.continued_by_final(state.winner) is not None:
        return ""
    again = "; its training starts again from the beginning, because"
    schedule = state.configurations[state.winner].values.get("schedule")
    if schedule in FIXED_LENGTH_SCHEDULES and not past.plan.to_the_end:
        return f"{again} its learning rate (schedule={schedule}) depends on the length of the training"
    whole = [r.results[state.winner] for r in state.rounds if r.plan.whole and state.winner in r.results]
    history = [v for result in whole for v in result.history] or past.results[state.winner].history
    best = max(history, key=lambda v: v.get("score", v["mrr"]))
    return f"{again} it was better after {best['epoch']:.3g} epochs than after {past.ended_at(state.winner):.3g}"


def over_time(state: SearchState) -> str:
    """Return why a search within a time ended after it; nothing if it did not."""
    time, plan = state.settings.get("time"), state.time_plan
    if time is None or not plan or not state.finished or state.seconds <= time:
        return ""
    if format_duration(state.seconds) == format_duration(time):
        return ""
    over = f"{format_duration(state.seconds - time)} over the time"
    if state.time_limit is not None and state.time_limit > plan.get("limit", time):
        return f"{over}: it was resumed with more time"
    if plan.get("limit", time) > time:
        used = format_duration(plan["used"])
        return f"{over}: after reading and measuring ({used}), too little was left for the smallest search"
    last = ("final training", "test") if state.final_began else ()
    ending = sum(plan["seconds"].get(part, 0.0) for part in last)
    rounds = sum(plan["seconds"].values()) - ending
    took = (state.final_began or state.seconds) - plan["used"]
    parts = [f"the rounds took {format_duration(took)} (planned: {format_duration(rounds)})"] if state.rounds else []
    if last:
        ended = format_duration(state.seconds - state.final_began)
        parts.append(f"final training and test took {ended} (planned: {format_duration(ending)})")
    return f"{over}: {', '.join(parts)}"


def baseline_text(evaluation: Mapping[str, Any]) -> str:
    """Return the MRR of the most frequent answers, after a warning if the model is no better; nothing without them."""
    baseline = evaluation.get("baseline")
    if not baseline:
        return ""
    text = f"baseline MRR {baseline['mrr']:.4f}: the most frequent answers of each relation, without a model"
    return text if evaluation["both"]["mrr"] > baseline["mrr"] else f"{_NO_BETTER}\nB{text[1:]}"


def relation_rows(evaluation: Mapping[str, Any]) -> list[tuple[str, int, float, float, float | None]]:
    """Return relation, questions, MRR, Hits@10 and the baseline's MRR, relations with the most questions first."""
    baseline = evaluation.get("baseline_per_relation", {})
    rows = [
        (name, int(m["n"]), float(m["mrr"]), float(m["hits@10"]), baseline.get(name))
        for name, m in evaluation.get("per_relation", {}).items()
        if "mrr" in m
    ]
    return sorted(rows, key=lambda row: -row[1])


def weak_relations(evaluation: Mapping[str, Any]) -> str:
    """Return a sentence that names the relations where the model is no better than the baseline; nothing without.

    A single relation is the whole test, about which `baseline_text` warns.
    """
    rows = relation_rows(evaluation)
    weak = [name for name, _, mrr, _, base in rows if base is not None and mrr <= base]
    if not weak or len(rows) == 1:
        return ""
    more = f" and {len(weak) - 5:,} more" if len(weak) > 5 else ""
    return f"No better than the baseline on {len(weak):,} of {len(rows):,} relations: {', '.join(weak[:5])}{more}."


def best_per_model(state: SearchState) -> list[dict[str, Any]]:
    """Return the best configuration of each model in the highest round that the model reached, best model first."""
    found: list[dict[str, Any]] = []
    for past in reversed(state.rounds):
        for number in past.best(len(past.results)):
            model, result = state.configurations[number].values.get("model"), past.results[number]
            if all(entry["model"] != model for entry in found):
                found.append({"model": model, "configuration": number, "round": past.plan.number, "mrr": result.mrr})
    return found


def changed_settings(*configurations: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that are not the defaults in at least one configuration, with the value in each."""
    from grash.training.config import make_config

    configs = [make_config(dict(values)) for values in configurations]
    changed = [config.model_dump(exclude_defaults=True, exclude=set(RUN_FIELDS)) for config in configs]
    names = dict.fromkeys(name for settings in changed for name in settings)
    return {name: [getattr(config, name) for config in configs] for name in names}


def settings_text(values: Mapping[str, Any]) -> str:
    """Return the settings of a configuration that are not the defaults, e.g. "lr=0.1, reciprocal=True"."""
    changed = {name: value for name, [value] in changed_settings(values).items()}
    return ", ".join(f"{name}={f'{v:.4g}' if isinstance(v, float) else v}" for name, v in changed.items())


def questions(dataset: Dataset) -> list[dict[str, str]]:
    """Return two questions to ask the model, with names of test triples: one for a tail, one for a head."""
    splits = (dataset.test, dataset.valid, dataset.train)
    triples = next((seen for split in splits if len(seen := _seen(dataset, split))), None)
    if triples is None:
        return []
    first = triples[0]
    second = next((row for row in triples[1:] if row[1] != first[1]), triples[-1])  # about another relation
    (head, relation, _), (_, other, tail) = (_names(dataset, row) for row in (first, second))
    return [{"head": head, "relation": relation}, {"relation": other, "tail": tail}]


def _seen(dataset: Dataset, triples: Triples) -> Triples:
    """Return those triples whose entities and relation are in train."""
    if dataset.seen_in_train is None:
        return triples
    entities, relations = dataset.seen_in_train
    return triples[entities[triples[:, 0]] & relations[triples[:, 1]] & entities[triples[:, 2]]]


def _names(dataset: Dataset, triple: Iterable[int]) -> tuple[str, ...]:
    kinds = (dataset.entities, dataset.relations, dataset.entities)
    return tuple(str(i) if names is None else names.name(int(i)) for i, names in zip(triple, kinds))
