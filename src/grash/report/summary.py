"""A search in figures: what `grash status` prints and what the live table and the report begin with.

Comes from a `SearchState`, that is from the ledger alone; goes to people as words (`cli/runs.py`) or as JSON.
"""

from __future__ import annotations

import fcntl
import math
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from grash.errors import InputError
from grash.formatting import format_duration
from grash.report.importance import ranking
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState, read_ledger
from grash.search.trial import Configuration, TrialProgress, TrialResult

_LOCK_FILE = ".lock"  # as in search/folder.py, whose import would load what a status does not need


def state_of(run_folder: Path) -> SearchState:
    """What the ledger of a run folder says, read without touching it; the search may be running."""
    path = Path(run_folder) / LEDGER_FILE
    if not Path(run_folder).exists():
        raise InputError(f"{run_folder} is no run folder of a search: it does not exist.")
    if not path.is_file():
        raise InputError(f"{run_folder} is no run folder of a search: it has no {LEDGER_FILE}.")
    events = read_ledger(path)
    if not events:
        raise InputError(f"{path} is empty: the search has not begun.")
    return SearchState.replay(events)


def abandoned(run_folder: Path) -> bool:
    """Whether nobody holds the lock of the folder any more; of another machine's process one cannot tell."""
    try:
        with (Path(run_folder) / _LOCK_FILE).open(encoding="utf-8") as lock:
            holder = lock.read().split()
            if holder and holder[-1] != socket.gethostname():
                return False
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:  # no lock file, or somebody has it
        return False


def summarize(state: SearchState, now: datetime, *, alive: bool = True) -> dict[str, Any]:
    """Where the search stands, JSON-able; `now` must know its time zone. Costs are in full training runs.

    alive: whether the process that runs it is there; without it, a search that is not over is `interrupted`.
    """
    left = seconds_left(state, now) if alive else None
    status = status_of(state)
    return {
        "status": status if alive or status in ("failed", "finished", "stopped") else "interrupted",
        "why": state.failed or state.stopped or None,
        "dataset": dict(state.dataset),
        "models": list(state.settings.get("models", [])),
        "n_trials": state.settings.get("n_trials"),
        "max_epochs": state.settings.get("max_epochs"),
        "started_at": state.started_at or None,
        "seconds": state.seconds,
        "seconds_left": left,
        "ends_at": None if left is None else (now + timedelta(seconds=left)).isoformat(timespec="seconds"),
        "budget": {"planned": state.budget, "spent": state.spent, "share": _share(state.spent, state.budget)},
        "cost": {"billed": state.spent, "measured_seconds": sum(past.seconds for past in state.rounds)},
        "rounds": [_round(state, number) for number in range(1, len(state.sizes) + 1)],
        "incumbent": _incumbent(state),
        "winner": _winner(state),
        "failures": failures(state),
    }


def status_of(state: SearchState) -> str:
    """One word: failed, finished, stopped, final training, running or planned."""
    if state.finished:
        return "failed" if state.failed else "finished"
    if state.stopped:
        return "stopped"
    if state.winner is not None and state.settings.get("final_train", True):
        return "final training"
    return "running" if state.rounds else "planned"


def counts(state: SearchState, number: int) -> dict[str, int]:
    """Trials of a round by what has become of them; a failed one is not among the done."""
    if number > len(state.rounds):
        waiting = 0 if state.finished else state.sizes[number - 1]
        return {"waiting": waiting, "running": 0, "done": 0, "failed": 0}
    this = state.rounds[number - 1]
    done = sum(r.status == "ok" for r in this.results.values())
    running = sum(n not in this.results for n in this.running)
    waiting = max(0, entering(state, number) - len(this.results) - running)
    return {"waiting": waiting, "running": running, "done": done, "failed": len(this.results) - done}


def entering(state: SearchState, number: int) -> int:
    """How many trials a round has: those that entered, or as many as were planned while the round before is open."""
    if number == 1:
        return min(state.sizes[0], len(state.configurations)) if state.configurations else state.sizes[0]
    before = state.rounds[number - 2].survivors if number - 2 < len(state.rounds) else None
    known = len(state.rounds[number - 1].results) if number <= len(state.rounds) else 0
    return max(known, state.sizes[number - 1] if before is None else len(before))


def seconds_left(state: SearchState, now: datetime) -> float | None:
    """Until the end if it goes on as so far: billed cost still to come, at the measured seconds per unit of cost.

    None when it is over, or when nothing has been measured yet.
    """
    pace = seconds_per_cost(state)
    if state.finished or pace is None:
        return None
    seconds = 0.0
    for number in range(1, len(state.sizes) + 1):
        seconds += _cost_left(state, number) * pace
    going = [e for past in state.rounds for n, e in past.running.items() if n not in past.results]
    at_once = max(1.0, float(len(going)), _parallel(state))
    # a running trial's own part is behind it, but never more than the trial was expected to take
    for event in going:
        expected = state.rounds[event["round"] - 1].plan.cost * pace
        seconds -= min(_since(event, now), expected)
    total = max(0.0, seconds) / at_once
    if state.settings.get("final_train", True) and state.final is None:
        done = 0.0 if state.final_running is None else _since(state.final_running, now)
        total += max(0.0, pace - done)
    return total


def seconds_per_cost(state: SearchState) -> float | None:
    """Measured seconds that a trial takes per full run billed, in the latest round that has ended trials."""
    for past in reversed(state.rounds):
        ended = [r for r in past.results.values() if r.status == "ok" and r.cost > 0]
        if ended:
            return sum(r.seconds for r in ended) / sum(r.cost for r in ended)
    return None


def failures(state: SearchState) -> list[dict[str, Any]]:
    """Failed attempts by kind, most frequent first, with the first message of each; retried ones included."""
    tries = [r for past in state.rounds for attempts in past.attempts.values() for r in attempts]
    tries += [r for attempts in state.finals.values() for r in attempts]
    found: dict[str, dict[str, Any]] = {}
    for result in tries:
        if result.status == "ok":
            continue
        entry = found.setdefault(result.status, {"kind": result.status, "count": 0, "round": result.round})
        entry["count"] += 1
        if "configuration" not in entry:
            entry |= {"configuration": result.number, "message": result.message}
    return sorted(found.values(), key=lambda e: (-e["count"], e["kind"]))


def final_metrics(final: TrialResult | None) -> dict[str, Any] | None:
    """The final training's metrics on test: mrr, its interval, hits@k …; None without them."""
    evaluation = final.evaluation if final is not None else None
    if not evaluation:
        return None
    interval = evaluation.get("mrr_interval")
    return {**evaluation.get("both", {}), "interval": None if interval is None else list(interval)}


def _round(state: SearchState, number: int) -> dict[str, Any]:
    base = {"number": number, **counts(state, number), "trials": entering(state, number)}
    if number > len(state.rounds):
        return {**base, "plan": None, "cost": 0.0, "seconds": 0.0, "best": None, "survivors": None}
    this = state.rounds[number - 1]
    plan = this.plan
    return {
        **base,
        "plan": {**plan.to_json(), "fractions": list(plan.fractions), "notes": list(plan.notes), "epochs": plan.epochs},
        "cost": this.cost,
        "seconds": this.seconds,
        "best": _scored(highest(this)),
        "survivors": this.survivors,
    }


def _scored(result: TrialResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    interval = None if result.interval is None else list(result.interval)
    return {"configuration": result.number, "mrr": result.mrr, "interval": interval}


def _incumbent(state: SearchState) -> dict[str, Any] | None:
    best = state.incumbent()
    if best is None:
        return None
    made, higher = state.configurations[best.number], higher_than(state.rounds[best.round - 1], best)
    return {
        **(_scored(best) or {}),
        "higher": None if higher is None else {"configuration": higher.number, "mrr": higher.mrr},
        "round": best.round,
        "origin": made.origin,
        "values": dict(made.values),
    }


def _winner(state: SearchState) -> dict[str, Any] | None:
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


def _cost_left(state: SearchState, number: int) -> float:
    """Billed cost of a round's trials that have not ended; a round that is not open yet has its share of the budget."""
    if number > len(state.rounds):
        return state.budget / max(1, len(state.sizes))
    this = state.rounds[number - 1]
    if this.survivors is not None:
        return 0.0
    return max(0, entering(state, number) - len(this.results)) * this.plan.cost


def _parallel(state: SearchState) -> float:
    """Trials at a time, as measured: trial seconds per driver second."""
    return sum(past.seconds for past in state.rounds) / state.seconds if state.seconds else 1.0


def _since(event: dict[str, Any], now: datetime) -> float:
    """Seconds since an event; 0 where its time cannot be read or lies ahead."""
    try:
        at = datetime.fromisoformat(event["at"].replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return 0.0
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return max(0.0, (now - at).total_seconds())


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(whole) else None


# = Who goes first in a round, and why: MRR decides, and how it was still rising (docs/decisions/0033).
# =
# = The two can disagree. What people read then says both: whose MRR is the highest, and why another goes before it.


def highest(past: RoundState) -> TrialResult | None:
    """The trial with the highest MRR of a round; of equals the one that goes first."""
    ranked = [past.results[n] for n in ranking(past)]
    return max(ranked, key=lambda result: result.mrr or 0.0, default=None)


def higher_than(past: RoundState, first: TrialResult) -> TrialResult | None:
    """The trial with the highest MRR of the round, where `first` goes before it because it was still rising."""
    best = highest(past)
    if best is None or (best.mrr or 0.0) <= (first.mrr or 0.0) or best.rise >= first.rise:
        return None
    return best


def difference(past: RoundState) -> str:
    """On the best of a round beside the others: by how much, whether that may be chance, and what decided."""
    order = ranking(past)
    first = past.results[order[0]]
    said = f"MRR {first.mrr:.4f} in round {past.plan.number}, on {past.plan.n_valid:,} validation triples."
    if len(order) < 2 or first.interval is None:
        return said + _why(past, first)
    others = [past.results[n] for n in order[1:]]
    lead = (first.mrr or 0.0) - (others[0].mrr or 0.0)
    by = f"is {lead:.4f} behind" if lead >= 0 else f"has {-lead:.4f} more"
    said += f" The runner-up, configuration {others[0].number}, {by}"
    close = sum(other.interval is not None and other.interval[1] >= first.interval[0] for other in others)
    if close:
        are = "is" if close == 1 else "are"
        said += f"; {close} of the {len(others)} others {are} within the intervals, so the lead may be chance."
    else:
        said += ", and its interval lies below the winner's." if lead >= 0 else "."
    return said + _why(past, first)


def _why(past: RoundState, first: TrialResult) -> str:
    """Why another with a higher MRR does not go first; nothing where none has."""
    higher = higher_than(past, first)
    if higher is None:
        return ""
    return (
        f" Configuration {first.number} goes before configuration {higher.number} ({higher.mrr:.4f}) because its MRR "
        f"was still rising: {past.plan.trend:g} of the rise between the last two validations counts (`trend`)."
    )


# = One row per trial and round: the table that the report sorts and that `trials_dataframe()` becomes.

FINAL = 0  # the round of the final training, as in the ledger


def trial_rows(state: SearchState) -> list[dict[str, Any]]:
    """Rows in the order of rounds and numbers, the final training (round 0) last; all have the same keys.

    `status` is ok, a kind of failure, `running` or `waiting`; the configuration's values stand behind `config.`.
    """
    rows = []
    for past in state.rounds:
        entrants = _entrants(state, past.plan.number)
        for number in sorted({*entrants, *past.results, *past.running}):
            made, result = state.configurations[number], past.results.get(number)
            status = "running" if number in past.running else "waiting"
            kept = number in past.survivors if past.survivors is not None else None
            attempts = len(past.attempts.get(number, []))
            rows.append(_row(made, past.plan.number, result, status=status, attempts=attempts, survived=kept))
    if state.winner is not None and (state.final is not None or state.final_running is not None):
        attempts = len(state.finals.get(state.winner, []))
        made = state.configurations[state.winner]
        rows.append(_row(made, FINAL, state.final, status="running", attempts=attempts, survived=None))
    _rank(rows, state)
    return rows


def _entrants(state: SearchState, number: int) -> list[int]:
    """Those who entered; after an extension a round may be open before the one under it is complete again."""
    if number > 1 and state.rounds[number - 2].survivors is None:
        return []
    return state.entrants(number)


def _row(
    made: Configuration, round_: int, result: TrialResult | None, *, status: str, attempts: int, survived: bool | None
) -> dict[str, Any]:
    low, high = result.interval if result is not None and result.interval is not None else (None, None)
    return {
        "round": round_,
        "configuration": made.number,
        "model": made.values.get("model"),
        "origin": made.origin,
        "status": status if result is None else result.status,
        "rank": None,
        "mrr": None if result is None else result.mrr,
        "low": low,
        "high": high,
        "survived": survived,
        "cost": None if result is None else result.cost,
        "seconds": None if result is None else result.seconds,
        "positives": None if result is None else result.positives,
        "scores": None if result is None else result.scores,
        "peak_bytes": None if result is None else result.peak_bytes,
        "device": None if result is None else result.device,
        "attempts": attempts,
        "message": "" if result is None else result.message,
        **{f"config.{name}": value for name, value in made.values.items()},
    }


def _rank(rows: list[dict[str, Any]], state: SearchState) -> None:
    """Fills in the rank inside the round, 1 the best, by the rule of promotion; the final training is its only one."""
    places = {
        (past.plan.number, number): rank
        for past in state.rounds
        for rank, number in enumerate(past.best(len(past.results)), 1)
    }
    for row in rows:
        if row["round"] == FINAL and row["mrr"] is not None and row["status"] == "ok":
            row["rank"] = 1
        elif (row["round"], row["configuration"]) in places:
            row["rank"] = places[row["round"], row["configuration"]]


# = A search as plain lines: in a log, and on a screen that is no terminal.


class Lines:
    """Says a round when it opens, every trial when it has ended, a round when it is closed, the winner."""

    def __init__(self, say: Callable[[str], None], *, of_nothing: bool = True) -> None:
        """of_nothing: whether a search that is over already says so; a log would fill with it."""
        self._say, self._of_nothing = say, of_nothing
        self._begun = False
        self._said: dict[int, set[int]] = {}  # by round, the configurations whose end was said
        self._closed: dict[int, bool] = {}
        self._winner: int | None = None
        self._final = False

    def watch(
        self, state: SearchState, heartbeats: dict[tuple[int, int], TrialProgress], devices: Sequence[str]
    ) -> None:
        if not self._begun:
            self._catch_up(state)
        for past in state.rounds:
            self._say_round(state, past)
        if state.winner is not None and state.winner != self._winner:
            self._say(f"the winner is configuration {state.winner}")
        self._winner = state.winner
        if state.final is not None and not self._final:
            self._say(f"final training: {_outcome(state.final)}{_test_words(state.final)}")
            self._final = True

    def _catch_up(self, state: SearchState) -> None:
        """What an earlier driver has said is not said again."""
        self._begun = True
        done = sum(len(past.results) for past in state.rounds)
        if not done and state.winner is None:
            return
        self._said = {past.plan.number: set(past.results) for past in state.rounds}
        self._closed = {past.plan.number: past.survivors is not None for past in state.rounds}
        self._winner, self._final = state.winner, state.final is not None
        if not state.finished:
            self._say(_goes_on(state, done))
        elif self._of_nothing:
            self._say("finished already, nothing to do")

    def _say_round(self, state: SearchState, past: RoundState) -> None:
        plan, number = past.plan, past.plan.number
        if number not in self._said:
            self._said[number], self._closed[number] = set(), False
            graph = f"{plan.n_entities:,} entities and {plan.n_train:,} triples"
            trials = f"{_trials(entering(state, number))} of {plan.epochs:.3g} epochs"
            self._say(f"round {number}: {trials} on {graph}, {plan.cost:.3g} full runs each")
        said = self._said[number]
        if len(said) < len(past.results):
            for n, result in past.results.items():
                if n not in said:
                    said.add(n)
                    self._say(f"round {number}  {len(said)}/{entering(state, number)}  cfg {n}  {_outcome(result)}")
        closed = past.survivors is not None
        if closed and not self._closed[number] and past.survivors:
            go = "goes" if len(past.survivors) == 1 else "go"
            self._say(f"round {number} closed: {len(past.survivors)} {go} on, {_first(past, past.survivors[0])}")
        self._closed[number] = closed


def _goes_on(state: SearchState, done: int) -> str:
    """Where a search stands that goes on: an extension opens the first rounds again."""
    number = next((past.plan.number for past in state.rounds if past.survivors is None), len(state.rounds) + 1)
    if number <= len(state.sizes):
        return f"goes on in round {number}: {_trials(done)} {'has' if done == 1 else 'have'} ended before"
    if state.settings.get("final_train", True) and state.final is None:
        return "goes on with the final training"
    return "goes on to its end: all is trained"


def _first(past: RoundState, number: int) -> str:
    """Who leads the survivors, and why if another has a higher MRR."""
    first = past.results[number]
    higher = higher_than(past, first)
    if higher is None:
        return f"the best is cfg {number}, {_score(first)}"
    return (
        f"cfg {number} goes first: {_score(first)} and still rising, before cfg {higher.number} with {higher.mrr:.4f}"
    )


def _trials(count: int) -> str:
    return f"{count} trial" if count == 1 else f"{count} trials"


def _outcome(result: TrialResult) -> str:
    billed = f"  {result.cost:.3g} full runs" if result.round else ""  # the final training is outside the budget
    return f"{_score(result)}{billed}  {format_duration(result.seconds)}"


def _score(result: TrialResult) -> str:
    if result.status != "ok" or result.mrr is None:
        return f"{result.status}: {result.message.splitlines()[0]}" if result.message else result.status
    span = f" [{result.interval[0]:.4f}, {result.interval[1]:.4f}]" if result.interval is not None else ""
    return f"MRR {result.mrr:.4f}{span}"


def _test_words(result: TrialResult) -> str:
    test = final_metrics(result)
    return f"  test MRR {test['mrr']:.4f}" if test is not None and test.get("mrr") is not None else ""
