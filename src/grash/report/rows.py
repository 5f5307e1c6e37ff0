"""One row per trial and round: the table that the report sorts and that `trials_dataframe()` becomes."""

from __future__ import annotations

from typing import Any

from grash.search.state import SearchState
from grash.search.trial import Configuration, Result

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
    made: Configuration, round_: int, result: Result | None, *, status: str, attempts: int, survived: bool | None
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
