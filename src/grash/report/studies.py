"""What each Optuna study should say of a search: pure, without Optuna. Written by `optuna_view.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grash.search.state import RoundState, SearchState
from grash.search.trial import Result

_SCORELESS = "FAIL"  # a machine's fault or an error says nothing about the configuration


class JournalDamaged(Exception):
    """What the file says cannot be continued: it has to be written anew."""


@dataclass(frozen=True)
class Wanted:
    """A trial as Optuna should have it: the name of its state, its value, values by step, user attributes."""

    state: str
    value: float | None = None
    steps: dict[int, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    round: int = field(default=0, compare=False)  # in which it was decided

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETE", "FAIL")


def overview_trials(state: SearchState) -> dict[int, Wanted]:
    """One trial per configuration. Its value, once it is out or the search is decided: rounds − 1 + place in the last.

    The place is the share of the round's trials that it does not lose against: 1 for the best, 0 for one that diverged.
    """
    reached: dict[int, dict[int, float]] = {number: {} for number in state.configurations}
    judged: dict[int, list[Result]] = {number: [] for number in state.configurations}
    out: set[int] = set()
    for past in state.rounds:
        if past.survivors is None:
            break
        places = _places(past)
        for number, result in past.results.items():
            reached[number][past.plan.number] = past.plan.number - 1 + places.get(number, 0.0)
            judged[number].append(result)
        out |= set(past.results) - set(past.survivors)
    decided = state.winner is not None or state.finished
    return {n: _overview(reached[n], judged[n], over=decided or n in out) for n in state.configurations}


def round_trials(past: RoundState) -> dict[int, Wanted]:
    """One trial per evaluation that has begun. A diverged one is complete with 0: the configuration is that bad."""
    found = {number: Wanted("RUNNING", notes={"status": "running"}) for number in past.running}
    for number, tries in past.attempts.items():
        if number not in found:
            found[number] = Wanted("WAITING", notes={"status": f"{tries[-1].status}, to be tried again"})
    for number, result in past.results.items():
        found[number] = _evaluated(result)
    return found


def study_notes(state: SearchState) -> dict[str, Any]:
    """Attributes of every study of the search."""
    names = ("eta", "n_trials", "max_epochs", "variant", "seed", "models")
    chosen = {name: state.settings[name] for name in names if name in state.settings}
    dataset = {f"dataset.{name}": state.dataset.get(name) for name in ("name", "fingerprint")}
    return {**chosen, "budget": state.budget, **dataset}


def _overview(steps: dict[int, float], judged: list[Result], *, over: bool) -> Wanted:
    notes: dict[str, Any] = {f"mrr_r{r.round}": r.mrr for r in judged if r.mrr is not None}
    notes |= {"cost_spent": sum(r.cost for r in judged), "seconds": sum(r.seconds for r in judged)}
    if not judged:
        return Wanted("FAIL" if over else "RUNNING", notes={"status": "not judged" if over else "in the race"})
    last = judged[-1]
    notes["status"] = last.status if over else "in the race"
    if not over:
        return Wanted("RUNNING", steps=steps, notes=notes)
    scored = last.status in ("ok", "diverged")
    value = steps[max(steps)] if scored else None
    return Wanted("COMPLETE" if scored else _SCORELESS, value, steps, notes, last.round)


def _evaluated(result: Result) -> Wanted:
    low, high = result.interval or (None, None)
    notes = {
        "status": result.status, "cost": result.cost, "seconds": result.seconds, "positives": result.positives,
        "peak_bytes": result.peak_bytes, "device": result.device, "low": low, "high": high,
        "message": result.message,
    }  # fmt: skip
    steps = {int(v["step"]): float(v["mrr"]) for v in result.history}
    if result.status == "ok":
        return Wanted("COMPLETE", result.mrr, steps, notes, result.round)
    if result.status == "diverged":
        return Wanted("COMPLETE", 0.0, steps, notes, result.round)
    return Wanted(_SCORELESS, None, steps, notes, result.round)


def _places(past: RoundState) -> dict[int, float]:
    order = past.best(len(past.results))
    return {number: 1 - rank / len(past.results) for rank, number in enumerate(order)}
