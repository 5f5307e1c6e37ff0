"""Which final training counts: that of the winner, if its model is the one in the folder."""

from grash.search.state import SearchState
from grash.search.trial import Result


def final_of(number: int) -> dict:
    return {"event": "ended", "result": Result(0, number, 1, "ok", mrr=0.5).to_json()}


def test_a_winner_whose_model_was_replaced_is_trained_again() -> None:
    state = SearchState()
    for event in ({"event": "won", "number": 1}, final_of(1), {"event": "won", "number": 2}, final_of(2)):
        state.see(event)
    assert state.final is not None and state.final.number == 2
    state.see({"event": "won", "number": 1})
    assert state.final is None
    state.see(final_of(1))
    assert state.final is not None and state.final.number == 1
