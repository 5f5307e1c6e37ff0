"""What a result means: sentences and rows that the terminal and the report share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import grash
from grash.report.meaning import (
    baseline_text,
    best_per_model,
    changed_settings,
    early_stop,
    over_time,
    questions,
    relation_rows,
    settings_text,
    starts_again,
    weak_relations,
)
from grash.report.page import sample_predictions
from grash.report.summary import difference, read_state, trial_spans
from grash.search.ledger import SearchState, read_ledger
from grash.training.config import TrainConfig
from report.runs import write_run
from small_graph import rings


def test_questions_name_test_triples_of_two_relations() -> None:
    data = rings()
    first, second = questions(data)
    assert first.keys() == {"head", "relation"} and second.keys() == {"relation", "tail"}
    assert first["relation"] != second["relation"] and first["head"].startswith("person")


def test_questions_have_names_that_the_model_was_trained_on() -> None:
    triples = [("a", "p", "b"), ("b", "q", "a")]
    data = grash.from_triples(triples, test=[("new", "p", "b"), ("a", "newer", "b"), ("a", "q", "b"), ("b", "p", "a")])
    assert questions(data) == [{"head": "a", "relation": "q"}, {"relation": "p", "tail": "a"}]
    only_new = grash.from_triples(triples, valid=[("a", "p", "newest")], test=[("new", "p", "b")])
    assert questions(only_new) == [{"head": "a", "relation": "p"}, {"relation": "q", "tail": "a"}]


def test_settings_are_shown_where_they_are_not_the_defaults() -> None:
    assert settings_text({"model": "complex", "lr": 0.25, "epochs": 3.0}) == "lr=0.25"
    both = changed_settings({"lr": 0.25}, {"model": "distmult"})
    assert both == {"lr": [0.25, 0.1], "model": ["complex", "distmult"]}


def test_an_early_stop_names_the_validation_that_patience_counted_from() -> None:
    scores = [0.4, 0.6, 0.5, 0.5]  # of the metric that decides, while the MRR rises
    history = [{"step": i, "epoch": i + 1.0, "mrr": 0.1 * i, "score": score} for i, score in enumerate(scores)]
    found = early_stop(history, TrainConfig(epochs=9.0, patience=2))
    assert found == "training stopped at epoch 4 of 9: no better validation since epoch 2 (valid MRR 0.1000)"


def winner_with(state: SearchState, values: list[float]) -> None:
    """Make the last round the second comparison of finalists, with these validations of the winner."""
    last, number = state.rounds[-1], state.winner
    assert number is not None
    last.plan = replace(last.plan, compares_finalists=True, continues=True, trend=0.707519)
    history = [{"step": i, "epoch": i + 1.0, "mrr": mrr} for i, mrr in enumerate(values)]
    last.results[number] = replace(last.results[number], history=history, mrr=max(values))


def test_the_log_tells_why_the_final_training_starts_again(tmp_path: Path) -> None:
    state = write_run(tmp_path / "run").state
    assert starts_again(state) == ""
    winner_with(state, [0.2, 0.3, 0.4])
    assert starts_again(state) == ""
    winner_with(state, [0.2, 0.4, 0.3])
    end = f"it was better after 2 epochs than after {state.rounds[-1].plan.epochs:.3g}"
    assert starts_again(state) == f"; its training starts again from the beginning, because {end}"


def test_a_final_training_whose_learning_rate_has_another_length_starts_again(tmp_path: Path) -> None:
    state = write_run(tmp_path / "run").state
    winner_with(state, [0.2, 0.3])
    assert state.winner is not None
    state.configurations[state.winner].values["schedule"] = "cosine"
    why = "its learning rate (schedule=cosine) depends on the length of the training"
    assert starts_again(state) == f"; its training starts again from the beginning, because {why}"


def test_the_report_does_not_name_the_trend_setting_for_finalists(tmp_path: Path) -> None:
    state = write_run(tmp_path / "run").state
    last = state.rounds[-1]
    for result in last.results.values():
        last.results[result.number] = replace(result, history=[], mrr=0.3)
    winner_with(state, [0.1, 0.299])
    text = difference(last)
    assert "its MRR was still rising: the score extrapolates it to all epochs." in text and "trend" not in text


def test_a_higher_mrr_of_another_configuration_is_explained_by_the_metric_that_decides(tmp_path: Path) -> None:
    state = write_run(tmp_path / "run").state
    last, interval = state.rounds[-1], (0.1, 0.9)
    last.before, last.plan = state.rounds[-2], replace(last.plan, compares_finalists=True, to_the_end=True, trend=0.0)
    first, second, *rest = last.best(len(last.results))
    for number in rest:
        del last.results[number]

    def compared(mrrs: tuple[float, float], scores: tuple[float, float], before: float) -> str:
        for number, mrr, score in zip((first, second), mrrs, scores):
            new = {"mrr": mrr, "score": score, "interval": interval, "epochs_before": 5.0, "history": []}
            last.results[number] = replace(last.results[number], **new)  # type: ignore[arg-type]
            earlier = replace(state.rounds[-2].results[number], score=before if number == first else 0.1)
            state.rounds[-2].results[number] = earlier
        return difference(last)

    assert compared((0.3, 0.4), (0.7, 0.6), 0.5).endswith("The search's metric decides, not the MRR.")
    assert compared((0.3, 0.4), (0.5, 0.6), 0.7).endswith(f"{first} had a score of 0.7000 in the round before.")
    last.plan = replace(last.plan, to_the_end=False, trend=1.0)
    assert "rising" not in compared((0.3, 0.4), (0.7, 0.6), 0.5)


@pytest.mark.parametrize(
    ("seconds", "limit", "resumed", "expected"),
    [
        (29.9, 30.0, 30.0, ""),
        (30.3, 30.0, 30.0, ""),  # shown as 30 s of 30 s
        (
            33.0, 30.0, 30.0,
            "3.0 s over the time: the rounds took 14 s (planned: 9.0 s), final training and test took 16 s "
            "(planned: 13 s)",
        ),
        (
            33.0, 35.0, 35.0,
            "3.0 s over the time: after reading and measuring (3.0 s), too little was left for the smallest search",
        ),
        (50.0, 30.0, 60.0, "20 s over the time: it was resumed with more time"),
    ],
)  # fmt: skip
def test_a_search_that_ends_after_its_time_tells_why(
    seconds: float, limit: float, resumed: float, expected: str
) -> None:
    parts = {"start": 4.0, "rounds": 5.0, "finalists": 0.0, "final training": 11.0, "test": 2.0}
    plan = {"time": 30.0, "limit": limit, "used": 3.0, "seconds": parts}
    state = SearchState(
        settings={"time": 30.0}, seconds=seconds, time_plan=plan, time_limit=resumed, final_began=17.0, finished=True
    )
    state.rounds.append(None)  # type: ignore[arg-type]
    assert over_time(state) == expected
    assert over_time(SearchState(seconds=seconds, finished=True)) == ""


def test_relations_with_the_most_questions_come_first() -> None:
    metrics = {name: {"n": n, "mrr": 0.5, "hits@10": 0.7} for name, n in (("rare", 2), ("frequent", 90))}
    rows = relation_rows({"per_relation": metrics, "baseline_per_relation": {"rare": 0.1}})
    assert rows == [("frequent", 90, 0.5, 0.7, None), ("rare", 2, 0.5, 0.7, 0.1)]


def test_relations_that_are_no_better_than_counting_are_named() -> None:
    metrics = {name: {"n": n, "mrr": 0.5, "hits@10": 0.7} for name, n in (("a", 9), ("b", 8), ("c", 7))}
    found = {"per_relation": metrics, "baseline_per_relation": {"a": 0.5, "b": 0.1, "c": 0.9}}
    assert weak_relations(found) == "No better than the baseline on 2 of 3 relations: a, c."
    assert weak_relations({"per_relation": metrics, "baseline_per_relation": {"a": 0.2}}) == ""


def test_a_model_that_is_no_better_than_counting_gets_a_warning_first() -> None:
    found = {
        "both": {"mrr": 0.5},
        "baseline": {"mrr": 0.25},
        "per_relation": {"r": {"n": 2, "mrr": 0.5, "hits@10": 1.0}},
    }
    assert baseline_text(found).startswith("baseline MRR 0.2500: the most frequent answers")
    for mrr in (0.5, 0.75):
        worse = {**found, "baseline": {"mrr": mrr}, "baseline_per_relation": {"r": mrr}}
        warning, advice, baseline = baseline_text(worse).splitlines()
        assert warning == "The model is no better than the baseline, which only counts frequent answers."
        assert "search with more time" in advice and baseline.startswith(f"Baseline MRR {mrr:.4f}: ")
        assert weak_relations(worse) == ""  # of one relation: the warning says it
    assert baseline_text({"both": {"mrr": 0.5}, "baseline": None}) == ""


def test_the_best_of_each_model_is_that_of_its_highest_round(tmp_path: Path) -> None:
    state = write_run(tmp_path, n_trials=16, models="complex,rotate,transe").state
    found = best_per_model(state)
    assert {entry["model"] for entry in found} == {"complex", "rotate", "transe"}
    assert found[0]["configuration"] == state.winner
    assert [entry["round"] for entry in found] == sorted((entry["round"] for entry in found), reverse=True)


def test_spans_cover_every_attempt(finished: Path) -> None:
    spans = trial_spans(read_ledger(finished / "ledger.jsonl"))
    assert {span.round for span in spans} == {0, 1, 2, 3} and all(span.start <= span.end for span in spans)
    assert len({(s.round, s.number) for s in spans if s.round}) == sum(
        len(r.results) for r in read_state(finished).rounds
    )


def test_samples_are_what_the_model_predicts(tmp_path: Path) -> None:
    data = rings()
    model = grash.train(data, dim=8, epochs=2, batch_size=8, out=tmp_path / "model", device="cpu")
    samples = sample_predictions(tmp_path / "model")
    assert len({sample.relation for sample in samples}) == len(samples) > 1
    for sample in samples:
        given = {"head": sample.head, "relation": sample.relation, "tail": sample.tail}
        asked = "head" if sample.head == "?" else "tail"
        answers = model.predict(**{part: name for part, name in given.items() if part != asked}, k=data.n_entities)
        new = [a.name for a in answers if not a.known or a.name == sample.truth]
        assert list(sample.answers) == new[:3] and new.index(sample.truth) + 1 == sample.rank
