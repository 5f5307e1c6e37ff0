"""A search as plain lines: in a log, and on a screen that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grash.report.lead import higher_than
from grash.report.summary import entering, final_metrics
from grash.report.svg import duration
from grash.search.state import RoundState, SearchState
from grash.search.trial import Heartbeat, Result


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

    def watch(self, state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]) -> None:
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


def _outcome(result: Result) -> str:
    billed = f"  {result.cost:.3g} full runs" if result.round else ""  # the final training is outside the budget
    return f"{_score(result)}{billed}  {duration(result.seconds)}"


def _score(result: Result) -> str:
    if result.status != "ok" or result.mrr is None:
        return f"{result.status}: {result.message.splitlines()[0]}" if result.message else result.status
    span = f" [{result.interval[0]:.4f}, {result.interval[1]:.4f}]" if result.interval is not None else ""
    return f"MRR {result.mrr:.4f}{span}"


def _test_words(result: Result) -> str:
    test = final_metrics(result)
    return f"  test MRR {test['mrr']:.4f}" if test is not None and test.get("mrr") is not None else ""
