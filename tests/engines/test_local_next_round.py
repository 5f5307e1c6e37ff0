"""From round to round: continued training equals an uninterrupted one, warm starts take over what they know."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines.searches import shifts, small_search
from grash.data.dataset import Dataset
from grash.engines.local import fill_new_entities, load_known_rows, load_saved_state, save_for_next_round
from grash.engines.trainer import run_training
from grash.errors import FormatError
from grash.reduction.subgraph import Subgraph
from grash.search.graphs import SearchGraphs
from grash.search.settings import make_settings
from grash.training.batches import Plan
from grash.training.checkpoint import TrainState, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model

KINDS: dict[str, dict[str, Any]] = {
    "negatives, adagrad": {},
    "negatives, adam, dropout": {"optimizer": "adam", "lr": 0.01, "dropout_entity": 0.3, "dropout_relation": 0.2},
    "own negatives, row adagrad": {"optimizer": "row_adagrad", "negatives_shared": False, "negatives_filtered": True},
    "1vsall, lazy adam, reciprocal": {"training": "1vsall", "optimizer": "lazy_adam", "reciprocal": True},
    "kvsall, adagrad, dropout": {"training": "kvsall", "dropout_entity": 0.2, "label_smoothing": 0.1},
    "kvsall, sgd, reciprocal": {"training": "kvsall", "optimizer": "sgd", "reciprocal": True},
    "rotate, warm-up": {"model": "rotate", "schedule": "warmup", "warmup_epochs": 1.3, "loss": "self_adversarial"},
    "penalty on everything": {"penalty": "l2", "penalty_entity": 0.01, "penalty_weighted": False},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache
def without_valid() -> Dataset:
    """Nothing is validated, so that a run ends with the weights of its last step."""
    whole = shifts(25)
    return Dataset(whole.train, whole.valid[:0], whole.test, 25, 7, name="bare")


def in_parts(config: TrainConfig, ends: list[float], folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The kept state at the end, and the entity table, of a run made round by round."""
    outcome = None
    for number, end in enumerate(ends):
        before, place = folder / str(number - 1), folder / str(number)
        outcome = run_training(
            without_valid(),
            config.changed(epochs=end),
            device="cpu",
            initialize=(lambda state, before=before: load_saved_state(state, before)) if number else None,
            keep=lambda state, place=place: save_for_next_round(state, place),
            keep_best=False,  # as in rounds of halving
        )
    assert outcome is not None
    return tables_in(folder / str(len(ends) - 1)), outcome.model.entity


def tables_in(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "tensors.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [13, 32, 500])
def test_a_continued_run_equals_one_that_was_never_interrupted(kind: str, batch_size: int, tmp_path: Path) -> None:
    """First rounds end inside a batch, at the end of a batch, and at the end of an epoch."""
    values = {"dim": 8, "batch_size": batch_size, "negatives_head": 5, "negatives_tail": 9} | KINDS[kind]
    config = make_config(values)
    n = len(without_valid().train)
    whole = in_parts(config, [2.75], tmp_path / "whole")
    for first in (0.37, 2 * min(batch_size, n) / n if batch_size < n else 0.5, 1.0, 1.61):
        continued = in_parts(config, [first, 2.75], tmp_path / f"{first}")
        assert same(continued[0], whole[0]) and torch.equal(continued[1], whole[1])
    assert same(in_parts(config, [0.2, 0.21, 1.5, 2.75], tmp_path / "many")[0], whole[0])


@pytest.mark.slow
@settings(max_examples=20)
@given(
    batch_size=st.integers(3, 200),
    ends=st.lists(st.floats(0.01, 3.0), min_size=2, max_size=4, unique=True).map(sorted),
    optimizer=st.sampled_from(["adagrad", "adam"]),
)
def test_rounds_of_any_length_continue_exactly(batch_size: int, ends: list[float], optimizer: str) -> None:
    config = make_config({"dim": 4, "batch_size": batch_size, "optimizer": optimizer, "training": "1vsall"})
    with TemporaryDirectory() as place:
        continued, whole = (in_parts(config, e, Path(place) / str(i)) for i, e in enumerate((ends, ends[-1:])))
    assert same(continued[0], whole[0]) and torch.equal(continued[1], whole[1])


def test_what_is_kept_ends_at_the_last_step_that_a_longer_run_would_make_too(tmp_path: Path) -> None:
    n = len(without_valid().train)
    for epochs, batch_size in ((0.5, 10), (1.0, 10), (1.5, n), (0.9, n + 5)):
        config = make_config({"dim": 4, "batch_size": batch_size})
        in_parts(config, [epochs], tmp_path / f"{epochs}")
        seen = round(epochs * n)
        whole = n * (seen // n) + (seen % n) // batch_size * batch_size
        kept = json.loads((tmp_path / f"{epochs}" / "0" / "state.json").read_text())
        assert kept["step"] == Plan(n, batch_size, epochs).full_steps
        assert Plan(n, batch_size, epochs).epoch_after(Plan(n, batch_size, epochs).full_steps) == whole / n


def test_a_damaged_state_is_said_to_be_so(tmp_path: Path) -> None:
    in_parts(make_config({"dim": 4}), [0.5], tmp_path)
    file = tmp_path / "0" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(FormatError, match="is damaged .*: the trial that continues from it cannot run"):
        run_training(
            without_valid(),
            make_config({"dim": 4}),
            device="cpu",
            initialize=lambda state: load_saved_state(state, file.parent),
        )


def test_the_second_round_of_a_search_is_an_uninterrupted_run(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run", variant="epoch", final_train=False, n_trials=4)
    state = search.run().state
    last = state.rounds[-1]
    assert last.plan.whole and last.plan.continues
    for number, result in last.results.items():
        values = state.configurations[number].values
        config = make_config({
            **values, "epochs": last.plan.epochs, "valid_every": last.plan.epochs / 2, "patience": None,
        })  # fmt: skip
        straight = run_training(search.dataset, config, device="cpu", threads=1)
        assert [v["mrr"] for v in result.history] == [v.mrr for v in straight.history]
        assert result.mrr == max(v.mrr for v in straight.history)
        assert result.interval == straight.interval
        assert result.positives < last.plan.positives


@pytest.mark.parametrize("schedule", ["cosine", "linear", "plateau"])
def test_schedules_with_a_horizon_start_anew_at_full_price(schedule: str, tmp_path: Path) -> None:
    fixed = {"batch_size": 96, "negatives_head": 10, "schedule": schedule}
    state = small_search(tmp_path / "run", variant="epoch", final_train=False, n_trials=4, fixed=fixed).run().state
    for past in state.rounds:
        assert {r.positives for r in past.results.values()} == {past.plan.positives}
    last = state.rounds[-1]
    assert last.cost == pytest.approx(len(last.results) * last.plan.positives / (4 * len(shifts().train)))
    assert last.cost > len(last.results) * last.plan.cost and state.spent <= state.budget


@pytest.mark.slow
def test_a_warm_start_takes_over_rows_and_begins_new_entities_at_the_mean_of_known_neighbors(tmp_path: Path) -> None:
    earlier, graph = subgraphs(0.3, 0.7)
    assert 0 < len(earlier.entity_ids) < len(graph.entity_ids)
    for values in (
        {"model": "complex", "optimizer": "adagrad"},
        {"model": "complex", "optimizer": "adam", "reciprocal": True},
        {"model": "rotate", "optimizer": "row_adagrad", "reciprocal": True},
        {"model": "cp", "optimizer": "sgd"},
        {"model": "mure", "optimizer": "adagrad"},
        {"model": "tucker", "optimizer": "adam"},
    ):
        config = make_config({"dim": 6, **values})
        old, new, untouched = (fresh(config, g) for g in (earlier, graph, graph))
        generator = torch.Generator().manual_seed(1)
        for tensor in state_tensors(old).values():
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
        save_for_next_round(old, tmp_path / "state")
        load_known_rows(new, tmp_path / "state", earlier, graph)
        for name, tensor in state_tensors(new).items():
            expected = state_tensors(old)[name]  # weights are those of the earlier graph
            if not name.startswith("weight"):
                expected = slow_take_over(name, expected, state_tensors(untouched)[name], earlier, graph)
            torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-6)
        assert new.step == 0


def fresh(config: TrainConfig, graph: Subgraph) -> TrainState:
    data = graph.dataset
    keys = {
        "entity_keys": torch.from_numpy(graph.entity_ids).long(),
        "relation_keys": torch.from_numpy(graph.relation_ids).long(),
    }
    return TrainState.fresh(initial_model(config, data.n_entities, data.n_relations, **keys), config)


def slow_take_over(
    name: str, old: torch.Tensor, untouched: torch.Tensor, earlier: Subgraph, graph: Subgraph
) -> torch.Tensor:
    """Row by row: what the earlier graph had; for a new entity the mean of its known neighbors, triple by triple."""
    found = untouched.clone()
    is_entity = name.startswith("entity")
    before = [int(i) for i in (earlier.entity_ids if is_entity else earlier.relation_ids)]
    now = [int(i) for i in (graph.entity_ids if is_entity else graph.relation_ids)]
    for inverse in range(len(found) // len(now)):
        for place, full in enumerate(now):
            if full in before:
                found[inverse * len(now) + place] = old[inverse * len(before) + before.index(full)]
    if name != "entity":
        return found
    known = found.clone()
    for place, full in enumerate(now):
        if full in before:
            continue
        ends = [(int(h), int(t)) for h, _, t in graph.dataset.train]
        others = [t for h, t in ends if h == place] + [h for h, t in ends if t == place]
        rows = [known[o] for o in others if now[o] in before]
        if rows:
            found[place] = torch.stack(rows).double().mean(0).float()
    return found


def test_an_entity_without_known_neighbors_keeps_its_initial_row() -> None:
    table = torch.arange(8.0).reshape(4, 2)
    fill_new_entities(table, np.array([[0, 0, 1], [2, 0, 3], [3, 0, 3]], np.int32), known=np.array([0]))
    assert table.tolist() == [[0, 1], [0, 1], [4, 5], [6, 7]]


@settings(max_examples=15)
@given(cuts=st.lists(st.floats(0.15, 0.97), min_size=2, max_size=3).map(sorted), seed=st.integers(0, 3))
@example(cuts=[0.3, 0.3], seed=0)  # rails may give two rounds the same graph
@example(cuts=[0.85, 0.9], seed=0)  # the first is the whole graph, and so is every later one
def test_a_lineage_is_never_validated_on_what_it_was_trained_on(cuts: list[float], seed: int) -> None:
    graphs = SearchGraphs(shifts(), make_settings({"warm_start": "weights", "seed": seed}))
    trained: set[tuple[int, ...]] = set()
    for number in range(1, len(cuts) + 1):
        graph = graphs.subgraph(tuple(cuts[:number]))
        assert not trained & rows_of(graph, "valid") and len(graph.dataset.valid)
        trained |= rows_of(graph, "train")


def subgraphs(*fractions: float) -> list[Subgraph]:
    graphs = SearchGraphs(shifts(), make_settings({"warm_start": "weights"}))
    return [graphs.subgraph(fractions[: i + 1]) for i in range(len(fractions))]


def rows_of(graph: Subgraph, split: Any) -> set[tuple[int, ...]]:
    return {tuple(row) for row in graph.full_ids(split).tolist()}


WARM: dict[str, dict[str, Any]] = {
    "combined": {},
    "graph": {"variant": "graph"},
    "to the whole graph": {"budget": 5},
    "reciprocal": {
        "fixed": {"batch_size": 96, "negatives_head": 10, "reciprocal": True, "optimizer": "adam", "lr": 0.05},
        "space": {"dropout_entity": {"low": 0.0, "high": 0.3}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WARM)
def test_a_search_with_warm_starts_runs_learns_and_repeats(kind: str, tmp_path: Path) -> None:
    def run(name: str, **more: Any) -> Any:
        return small_search(tmp_path / name, final_train=False, n_trials=4, **{**WARM[kind], **more}).run().state

    first, again, cold = run("a", warm_start="weights"), run("b", warm_start="weights"), run("c")
    scores = [[r.mrr for past in s.rounds for r in past.results.values()] for s in (first, again)]
    assert scores[0] == scores[1]
    assert all(r.status == "ok" for past in first.rounds for r in past.results.values())
    assert [p.plan.whole for p in first.rounds] == [p.plan.whole for p in cold.rounds]
    warm, new = (max(r.mrr for r in s.rounds[-1].results.values()) for s in (first, cold))
    assert warm > new, "what was learnt before should help on so short a run"
    assert first.spent <= first.budget
