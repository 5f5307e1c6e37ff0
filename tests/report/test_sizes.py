"""Model size against score: the Pareto front, and where it is drawn."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from grash.report.charts import pareto_front, size_against_score
from grash.search.ledger import SearchState
from grash.search.trial import Configuration
from search.test_several_models import searched

points = st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=30)


@given(points)
def test_nothing_beats_a_point_of_the_front_and_something_beats_or_equals_the_rest(
    given: list[tuple[int, float]],
) -> None:
    front = pareto_front(given)
    assert front == sorted(front) and set(front) <= set(given)
    for size, value in given:
        better = [p for p in given if (p[0] <= size and p[1] > value) or (p[0] < size and p[1] >= value)]
        assert ((size, value) in front) == (not better)


def sized(dims: list[int]) -> SearchState:
    scores = [0.1 * (i + 1) for i in range(len(dims))]
    state = searched(scores, ["complex"] * len(dims), [len(dims)])
    made = {n: replace(c, values={"model": "complex", "dim": dims[n]}) for n, c in state.configurations.items()}
    assert all(isinstance(c, Configuration) for c in made.values())
    return replace(state, configurations=made, dataset={"n_entities": 1000, "n_relations": 10})


def test_sizes_are_drawn_only_where_they_differ() -> None:
    drawn = size_against_score(sized([8, 64, 64, 512]), 400)
    assert drawn is not None and drawn.count("<circle") == 4 and "31.6 KiB" in drawn and "Pareto front" in drawn
    assert size_against_score(sized([64, 64]), 400) is None
    assert size_against_score(SearchState(), 400) is None


def test_the_time_of_a_question_is_shown_where_it_was_measured() -> None:
    state = sized([8, 64])
    state = replace(state, settings={**state.settings, "prediction_ms": {"complex": {"8": 1.25, "16": 2.5}}})
    assert (size_against_score(state, 400) or "").count("ms for a question") == 1
