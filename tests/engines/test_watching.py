"""Whose error a watcher's own error is."""

from __future__ import annotations

from typing import Any

import pytest

from grash.engines.driver import stop_on_watch_error
from grash.search.ledger import SearchState


class Slip(Exception):
    pass


def test_a_slip_that_was_taken_for_an_interrupt_is_raised_at_the_end_and_nobody_is_told_again() -> None:
    calls: list[Any] = []

    def slips(*given: Any) -> None:
        calls.append(given)
        raise Slip

    with pytest.raises(Slip) as caught, stop_on_watch_error(slips) as told:
        assert told is not None
        with pytest.raises(KeyboardInterrupt):
            told(SearchState(), {}, ["cpu"])
        told(SearchState(), {}, ["cpu"])
    assert len(calls) == 1 and caught.value.__suppress_context__


def test_other_errors_and_interrupts_pass_a_watcher_by() -> None:
    with stop_on_watch_error(None) as told:
        assert told is None
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error), stop_on_watch_error(lambda *given: None):
            raise error
