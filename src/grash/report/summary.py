"""A search in figures: what `grash status` prints and what the live table and the report begin with.

Comes from a `SearchState`, that is from the ledger alone; goes to people as words (`cli/runs.py`) or as JSON.
"""

from __future__ import annotations

import fcntl
import math
import socket
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from grash.errors import InputError
from grash.report.lead import higher_than, highest
from grash.search.ledger import LEDGER_FILE, read_ledger
from grash.search.state import SearchState
from grash.search.trial import Result

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


def summarise(state: SearchState, now: datetime, *, alive: bool = True) -> dict[str, Any]:
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


def final_metrics(final: Result | None) -> dict[str, Any] | None:
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


def _scored(result: Result | None) -> dict[str, Any] | None:
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
