"""A search as plain data: its state from the ledger, the summary of `grash status --json`, one row per trial.

Everything follows from the ledger, so a run folder can be read while its search runs. The terminal (`cli`), the
report (`page.py`) and `SearchResult.trials()` only format what this module returns.
"""

from __future__ import annotations

import fcntl
import json
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from grash.errors import InputError
from grash.search.ledger import LEDGER_FILE, Event, RoundState, SearchState, StopReason, read_ledger
from grash.search.trial import Configuration, TrialResult

FINAL = 0  # number of the "round" of the final training, as in the ledger
_LOCK_FILE = ".lock"  # as in search/run_folder.py, whose import would make `grash status` slow
_STOPPED_BY: dict[StopReason, str] = {
    "interrupted": "It was interrupted.",
    "max_seconds": "The time given by --max-seconds is over.",
}


def read_state(run_folder: Path) -> SearchState:
    """Return the state of the search in a run folder, from its ledger. The search may be running."""
    path = Path(run_folder) / LEDGER_FILE
    if not path.is_file():
        why = f"it has no {LEDGER_FILE}" if Path(run_folder).exists() else "it does not exist"
        raise InputError(f"{run_folder} is not a run folder of a search: {why}.")
    events = read_ledger(path)
    if not events:
        raise InputError(f"{path} is empty: the search has not started.")
    return SearchState.replay(events)


def graph_of(run_folder: Path, source: str) -> str:
    """Return what a command such as `grash train` has to name to use the graph of a search.

    The folder's own copy needs no options for reading, and has the same split; a bundled graph is named.
    """
    copy = Path(run_folder) / "dataset"
    return str(copy) if copy.is_dir() and source != "world" else source or str(copy)


def read_evaluation(run_folder: Path) -> dict[str, Any]:
    """Return the whole test evaluation of the trained winner, with all relations; empty if there is none."""
    path = Path(run_folder) / "model" / "model.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["evaluation"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_abandoned(run_folder: Path) -> bool:
    """Return whether the process that ran the search is gone. False if it ran on another machine."""
    try:
        with (Path(run_folder) / _LOCK_FILE).open(encoding="utf-8") as lock:
            holder = lock.read().split()
            if holder and holder[-1] != socket.gethostname():
                return False
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:  # no lock file, or a running process holds it
        return False


def summarize(state: SearchState, now: datetime, *, alive: bool = True) -> dict[str, Any]:
    """Return status, rounds, best configuration, costs and failures as JSON values. Costs are in full runs.

    now: with a time zone. alive: False if the process is gone; an unfinished search is then `interrupted`.
    """
    left, status = seconds_left(state, now) if alive else None, status_of(state)
    share = state.spent / state.budget if state.budget and math.isfinite(state.budget) else None
    return {
        "status": status if alive or status in ("failed", "finished", "stopped") else "interrupted",
        "why": state.failed or stop_reason(state) or None,
        "dataset": dict(state.dataset),
        "models": list(state.settings.get("models", [])),
        "n_trials": state.settings.get("n_trials"),
        "max_epochs": state.settings.get("max_epochs"),
        "time": state.settings.get("time"),
        "changes": list(state.changes),
        "started_at": state.started_at or None,
        "seconds": state.seconds,
        "seconds_left": left,
        "ends_at": None if left is None else (now + timedelta(seconds=left)).isoformat(timespec="seconds"),
        "budget": {"planned": state.budget, "spent": state.spent, "share": share},
        "cost": {"billed": state.spent, "measured_seconds": sum(r.seconds for r in state.rounds)},
        "rounds": [_round_summary(state, number) for number in range(1, _n_rounds(state) + 1)],
        "incumbent": _incumbent_summary(state),
        "winner": _winner_summary(state),
        "failures": failures(state),
    }


def status_of(state: SearchState) -> str:
    """Return failed, finished, stopped, final training, running or planned."""
    if state.finished:
        return "failed" if state.failed else "finished"
    if state.stopped:
        return "stopped"
    if state.winner is not None and state.settings.get("final_train", True):
        return "final training"
    return "running" if state.rounds else "planned"


def stop_reason(state: SearchState) -> str:
    """Return a sentence on why the search stopped before its end; empty if it did not."""
    return "" if state.stopped is None else _STOPPED_BY.get(state.stopped, state.stopped)


def n_entrants(state: SearchState, number: int) -> int:
    """Return how many trials a round has: those that entered, or the planned number while the round before is open."""
    if number == 1:
        return min(state.first_size, len(state.configurations)) if state.configurations else state.first_size
    before = state.rounds[number - 2].survivors if number - 2 < len(state.rounds) else None
    known = len(state.rounds[number - 1].results) if number <= len(state.rounds) else 0
    return max(known, state.sizes[number - 1] if before is None else len(before))


def seconds_left(state: SearchState, now: datetime) -> float | None:
    """Return the expected seconds to the end: remaining cost times measured seconds per cost.

    At most what is left of a time limit. None if the search is over or nothing has been measured yet.
    """
    pace = _seconds_per_cost(state)
    if state.finished or pace is None:
        return None
    seconds = sum(_cost_left(state, number) * pace for number in range(1, _n_rounds(state) + 1))
    running = [event for r in state.rounds for n, event in r.running.items() if n not in r.results]
    at_once = max(1.0, len(running), sum(r.seconds for r in state.rounds) / (state.seconds or 1.0))
    for event in running:  # subtract what has run, at most the expected time of the trial
        expected = state.rounds[event["round"] - 1].plan.cost * pace
        seconds -= min(_seconds_since(event, now), expected)
    total = max(0.0, seconds) / at_once
    if state.settings.get("final_train", True) and state.final is None:
        done = 0.0 if state.final_running is None else _seconds_since(state.final_running, now)
        total += max(0.0, pace * (1 - _share_before(state)) - done)
    return total if state.time_limit is None else min(total, max(0.0, state.time_limit - state.seconds))


def failures(state: SearchState) -> list[dict[str, Any]]:
    """Return failed attempts by kind, most frequent first, each with its first message. Retries count too."""
    attempts = [result for r in state.rounds for tries in r.attempts.values() for result in tries]
    attempts += [result for tries in state.finals.values() for result in tries]
    found: dict[str, dict[str, Any]] = {}
    for result in attempts:
        if result.status != "ok":
            where = {"round": result.round, "configuration": result.number, "message": result.message}
            found.setdefault(result.status, {"kind": result.status, "count": 0, **where})["count"] += 1
    return sorted(found.values(), key=lambda e: (-e["count"], e["kind"]))


def final_metrics(final: TrialResult | None) -> dict[str, Any] | None:
    """Return the test metrics of the final training: mrr, its interval, hits@k, …; None without them."""
    evaluation = final.evaluation if final is not None else None
    if not evaluation:
        return None
    interval = evaluation.get("mrr_interval")
    return {**evaluation.get("both", {}), "interval": None if interval is None else list(interval)}


def ranked(round_state: RoundState) -> list[int]:
    """Return the configurations of a round that have a score, best first."""
    return round_state.best(len(round_state.results))


def higher_than(round_state: RoundState, first: TrialResult) -> TrialResult | None:
    """Return the trial with a higher MRR than `first` that ranks behind it, since `first` was still rising.

    The MRR and how much it was still rising decide together (docs/decisions/0033), so the two can disagree. None after
    a training to the end, which leaves nothing to extrapolate.
    """
    if round_state.plan.to_the_end:
        return None
    best = _highest(round_state)
    if best is None or (best.mrr or 0.0) <= (first.mrr or 0.0) or (best.value or 0.0) <= (first.value or 0.0):
        return None  # also if it is behind in the metric that decides
    return best if best.rise < first.rise else None


def difference(round_state: RoundState) -> str:
    """Return sentences that compare the best trial of a round with the others: by how much, and if by chance."""
    order = ranked(round_state)
    first, plan = round_state.results[order[0]], round_state.plan
    text = f"MRR {first.mrr:.4f} in round {plan.number}, on {plan.n_valid:,} validation triples."
    if len(order) > 1 and first.interval is not None:
        others = [round_state.results[n] for n in order[1:]]
        closest = max(others, key=lambda other: other.mrr or 0.0)  # not always the next in rank: scores add the trend
        lead = (first.mrr or 0.0) - (closest.mrr or 0.0)
        n = closest.number
        text += (
            f" Next is configuration {n}, {lead:.4f} behind"
            if lead >= 0
            else f" Configuration {n} has {-lead:.4f} more"
        )
        close = sum(other.interval is not None and other.interval[1] >= first.interval[0] for other in others)
        if close:
            overlap = f"{'overlaps' if close == 1 else 'overlap'} with the winner's interval"
            text += f"; {close} of the {len(others)} others {overlap}, so the lead may be chance."
        else:
            text += ", and its interval is below the winner's." if lead >= 0 else "."
        if lead < 0:
            text += _why_first(round_state, first, closest)
    if (higher := higher_than(round_state, first)) is not None:
        rise = f"the score adds {plan.trend:g} of the rise over the second half of the round (`trend`)."
        if plan.compares_finalists:
            rise = "the score extrapolates it to all epochs."
        text += f" Configuration {first.number} ranks before configuration {higher.number} ({higher.mrr:.4f}) "
        text += f"because its MRR was still rising: {rise}"
    return text


def _why_first(round_state: RoundState, first: TrialResult, closest: TrialResult) -> str:
    """Return why the best trial of a round ranks before one with a higher MRR, unless `higher_than` tells it."""
    plan = round_state.plan
    if round_state.cut_at is not None:
        return f" They are compared after {round_state.cut_at:.3g} epochs, where the time was over for one of them."
    if first.score is not None and first.score >= (closest.score or 0.0):
        return " The search's metric decides, not the MRR."
    if plan.to_the_end:
        what = "" if first.score is None else "a score of "
        return f" Configuration {first.number} had {what}{round_state.score(first):.4f} in the round before."
    if plan.compares_finalists and not plan.continues:
        text = " Finalists are ranked by their score in the round before, times the ratio of their MRRs on the full"
        return f"{text} graph and on that round's graph after the same number of epochs."
    return ""


@dataclass(frozen=True)
class TrialSpan:
    """When and where a trial ran, in seconds that the search had run; round 0 is the final training."""

    device: str
    round: int
    number: int
    status: str
    start: float
    end: float


def trial_spans(events: Iterable[Event]) -> list[TrialSpan]:
    """Return every attempt that has ended, in the order in which they ended."""
    starts: dict[tuple[int, int], Event] = {}
    spans = []
    for event in events:
        if event["event"] == "trial_started":
            starts[event["round"], event["number"]] = event
        elif event["event"] == "trial_ended":
            result = event["result"]
            begun = starts.pop((result["round"], result["number"]), None)
            if begun is not None:
                at = begun.get("elapsed", 0.0), event.get("elapsed", 0.0)
                about = begun.get("device") or "?", result["round"], result["number"], result["status"]
                spans.append(TrialSpan(*about, *at))
    return spans


def trial_rows(state: SearchState) -> list[dict[str, Any]]:
    """Return one row per trial and round, ordered by round and number, the final training (round 0) last.

    All rows have the same keys. `status` is ok, a kind of failure, `running` or `waiting`; the values of the
    configuration have the prefix `config.`.
    """
    rows = []
    for r in state.rounds:
        ranks = {number: rank for rank, number in enumerate(ranked(r), 1)}
        # nobody has entered a round while the one before it is open again, after an extension
        opened = r.plan.number == 1 or state.rounds[r.plan.number - 2].survivors is not None
        entrants = state.entrants(r.plan.number) if opened else []
        for number in sorted({*entrants, *r.results, *r.running}):
            row: dict[str, Any] = {"round": r.plan.number, "status": "running" if number in r.running else "waiting"}
            row |= {"rank": ranks.get(number), "survived": None if r.survivors is None else number in r.survivors}
            row["attempts"] = len(r.attempts.get(number, []))
            rows.append(_trial_row(state.configurations[number], r.results.get(number), row))
    final = state.final
    if state.winner is not None and (final is not None or state.final_running is not None):
        scored = final is not None and final.status == "ok" and final.mrr is not None
        row = {"round": FINAL, "status": "running", "rank": 1 if scored else None, "survived": None}
        row["attempts"] = len(state.finals.get(state.winner, []))
        rows.append(_trial_row(state.configurations[state.winner], final, row))
    return rows


def _round_summary(state: SearchState, number: int) -> dict[str, Any]:
    """Return a round with its trials by their state; failed trials are not among the done ones."""
    n_trials = n_entrants(state, number)
    if number > len(state.rounds):
        waiting = 0 if state.finished else state.sizes[number - 1]
        counts = {"waiting": waiting, "running": 0, "done": 0, "failed": 0}
        nothing = {"plan": None, "cost": 0.0, "seconds": 0.0, "best": None, "survivors": None}
        return {"number": number, **counts, "trials": n_trials, **nothing}
    this = state.rounds[number - 1]
    plan, best = this.plan, _highest(this)
    done = sum(r.status == "ok" for r in this.results.values())
    running = sum(n not in this.results for n in this.running)
    return {
        "number": number,
        "waiting": max(0, n_trials - len(this.results) - running),
        "running": running,
        "done": done,
        "failed": len(this.results) - done,
        "trials": n_trials,
        "plan": {**plan.to_json(), "fractions": list(plan.fractions), "notes": list(plan.notes), "epochs": plan.epochs},
        "cost": this.cost,
        "seconds": this.seconds,
        "best": None if best is None else _score_summary(best),
        "survivors": this.survivors,
    }


def _highest(round_state: RoundState) -> TrialResult | None:
    """Return the trial with the highest MRR; of equal ones the better ranked."""
    results = [round_state.results[n] for n in ranked(round_state)]
    return max(results, key=lambda result: result.mrr or 0.0, default=None)


def _score_summary(result: TrialResult) -> dict[str, Any]:
    return {"configuration": result.number, "mrr": result.mrr, "interval": result.interval and list(result.interval)}


def _incumbent_summary(state: SearchState) -> dict[str, Any] | None:
    best, last = state.incumbent(), state.last_scored()
    if best is None or last is None:
        return None
    made, higher = state.configurations[best.number], higher_than(last, best)
    return {
        **_score_summary(best),
        "higher": None if higher is None else {"configuration": higher.number, "mrr": higher.mrr},
        "round": best.round,
        "origin": made.origin,
        "values": dict(made.values),
    }


def _winner_summary(state: SearchState) -> dict[str, Any] | None:
    if state.winner is None:
        return None
    made, final = state.configurations[state.winner], state.final
    return {
        "configuration": state.winner,
        "origin": made.origin,
        "values": dict(made.values),
        "final": None if final is None else {"status": final.status, "seconds": final.seconds, "valid_mrr": final.mrr},
        "test": final_metrics(final),
    }


def _seconds_per_cost(state: SearchState) -> float | None:
    """Return the measured seconds per full run, in the latest round with finished trials."""
    for r in reversed(state.rounds):
        ended = [result for result in r.results.values() if result.status == "ok"]
        cost = sum(result.cost or r.plan.cost for result in ended)  # that of a finalist is outside the budget
        if cost > 0:
            return sum(result.seconds for result in ended) / cost
    return None


def _n_rounds(state: SearchState) -> int:
    """Return the number of rounds, without comparisons of finalists that turned out not to be needed."""
    return len(state.sizes) if state.winner is None else min(len(state.sizes), len(state.rounds))


def _share_before(state: SearchState) -> float:
    """Return the share of the final training that a comparison of finalists is expected to have done."""
    if state.winner is None and state.trains_to_the_end(len(state.sizes)):
        return 1.0
    best = state.incumbent()
    if best is None:
        return 0.0
    number = best.number if state.winner is None else state.winner
    past = state.continued_by_final(number)
    return 0.0 if past is None else past.plan.epoch_fraction * past.ended_at(number) / past.plan.epochs


def _cost_left(state: SearchState, number: int) -> float:
    """Return the cost of a round's open trials; for a round that is not open yet, what is expected.

    A round of halving has an equal share of the budget.
    """
    if number > len(state.rounds):
        n_halving = len(state.halving_sizes)
        if number <= n_halving:
            return state.budget / n_halving
        return state.sizes[number - 1] * state.expected_cost(number)
    this = state.rounds[number - 1]
    if this.survivors is not None:
        return 0.0
    return max(0, n_entrants(state, number) - len(this.results)) * this.plan.cost


def _seconds_since(event: dict[str, Any], now: datetime) -> float:
    """Return the seconds since an event; 0 if its time is unreadable or in the future."""
    try:
        at = datetime.fromisoformat(event["at"].replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return 0.0
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return max(0.0, (now - at).total_seconds())


def _trial_row(made: Configuration, result: TrialResult | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return the whole row of a trial; the values of a trial without a result are None."""
    low, high = (result.interval if result is not None else None) or (None, None)

    def value(name: str) -> Any:
        return None if result is None else getattr(result, name)

    return {
        "round": row["round"],
        "configuration": made.number,
        "model": made.values.get("model"),
        "origin": made.origin,
        "status": value("status") or row["status"],
        "rank": row["rank"],
        "mrr": value("mrr"),
        "score": value("value"),
        "low": low,
        "high": high,
        "survived": row["survived"],
        **{name: value(name) for name in ("cost", "seconds", "positives", "scores", "peak_bytes", "device")},
        "attempts": row["attempts"],
        "message": value("message") or "",
        **{f"config.{name}": setting for name, setting in made.values.items()},
    }


def mrr_text(mrr: float | None, interval: Any) -> str:
    """Return "MRR 0.3412 [0.3301, 0.3520]", without brackets if there is no interval."""
    text = "no score" if mrr is None else f"MRR {mrr:.4f}"
    return text if interval is None else f"{text} [{interval[0]:.4f}, {interval[1]:.4f}]"
