"""Trainings together on a CUDA device: alone, among 8 and among 64 the same, within the planned memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.searches import essence, small_search
from grash.data.dataset import Dataset
from grash.engines.trainer import TrainingData, run_trainings
from grash.errors import Diverged
from grash.training.config import TrainConfig
from grash.training.fused import uses_fused_step
from grash.training.loop import Training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


def graph(n_entities: int = 701, n: int = 5000, n_relations: int = 7, n_valid: int = 300) -> Dataset:
    """Heads and tails repeat, as in a real graph."""
    rng = np.random.default_rng(0)
    heads, tails = (n_entities * rng.random((2, n + n_valid)) ** np.array([[3], [2]])).astype(np.int32)
    triples = np.stack([heads, rng.integers(0, n_relations, n + n_valid, dtype=np.int32), tails], 1)
    train, valid = (np.ascontiguousarray(part) for part in np.split(triples, [n]))
    return Dataset(train, valid, valid[:0].copy(), n_entities, n_relations, name="random")


def config_of(number: int, **values: Any) -> TrainConfig:
    """Sixty-four kinds, some of which have dropout, penalties or a schedule; number 5 diverges."""
    rng = np.random.default_rng(number)
    own = {
        "negatives_head": int(rng.integers(1, 300)), "negatives_tail": int(rng.integers(1, 900)),
        "lr": 1e25 if number == 5 else float(10 ** rng.uniform(-2, -0.5)),
        "dropout_entity": float(rng.choice([0.0, 0.3])), "dropout_relation": float(rng.choice([0.0, 0.2])),
        "penalty": str(rng.choice(["none", "l1", "l2", "l3", "n3"])), "penalty_entity": 1e-3, "penalty_relation": 1e-4,
        "schedule": str(rng.choice(["constant", "plateau", "cosine"])), "schedule_patience": 0,
        "warmup_epochs": float(rng.choice([0.0, 1.0])), "init": str(rng.choice(["normal", "xavier_normal"])),
    }  # fmt: skip
    shared = {"dim": 32, "batch_size": 256, "epochs": 12.3, "valid_every": 4.0, "patience": None}
    return TrainConfig(**{**own, **shared, **values, "variation": number})


def run(data: TrainingData, configs: list[TrainConfig], **more: Any) -> dict[int, Any]:
    jobs = [Training(config, **more) for config in configs]
    return {configs[place].variation: e for stack in run_trainings(data, jobs) for place, e in stack}


def seen(ended: Any) -> dict[str, Any]:
    if isinstance(ended, Exception):
        return {"error": str(ended), "epoch": getattr(ended, "epoch", None)}
    tables = [t.cpu().numpy().tobytes() for t in (ended.model.entity, ended.model.relation)]
    return {"tables": tables, "history": ended.history, "interval": ended.interval, "steps": ended.step}


@pytest.mark.parametrize("model,precision", [("complex", "bf16"), ("complex", "float32"), ("rotate", "float32")])
def test_alone_among_8_and_among_64_a_trial_is_the_same(model: str, precision: str) -> None:
    data = TrainingData(graph(), CUDA)
    configs = [config_of(i, model=model, precision=precision) for i in range(64)]
    assert all(uses_fused_step(c, CUDA) for c in configs)
    sixty_four = {n: seen(e) for n, e in run(data, configs).items()}
    eight = {n: seen(e) for n, e in run(data, configs[:8]).items()}
    for number in range(8):
        alone = seen(run(data, [configs[number]])[number])
        assert alone == eight[number] == sixty_four[number], number
    assert "diverged at step" in sixty_four[5]["error"] and sixty_four[5]["epoch"] < 12.3


def test_trials_of_questions_are_the_same_alone_and_among_8() -> None:
    data, none = TrainingData(graph(), CUDA), {"dropout_entity": 0.0, "dropout_relation": 0.0}
    configs = [config_of(i, training="kvsall", label_smoothing=0.1 * (i % 3), **none) for i in range(8)]
    assert all(uses_fused_step(c, CUDA) for c in configs)
    together = {n: seen(e) for n, e in run(data, configs).items()}
    for number in range(8):
        assert seen(run(data, [configs[number]])[number]) == together[number], number
    assert "diverged at step" in together[5]["error"]


def test_the_memory_plan_of_questions_holds() -> None:
    data = TrainingData(graph(50_000, 400_000, 60, 5000), CUDA)
    config = config_of(0, training="kvsall", dim=512, batch_size=1024, epochs=0.2, valid_every=0.1, dropout_entity=0.0,
                       dropout_relation=0.0, schedule="constant", warmup_epochs=0.0, lr=0.1)  # fmt: skip
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert not any(isinstance(e, Exception) for e in run(data, [config]).values())
    used, planned = torch.cuda.max_memory_allocated() - before, data.plan_memory([config]).device
    print(f"\nplanned {planned:,} bytes, used {used:,}: {used / planned:.4f}; {data.plan_memory([config]).sentence()}")
    assert 0.85 * planned < used < 1.05 * planned


def test_a_neighbor_that_diverges_late_and_one_out_of_patience_leave_and_the_rest_goes_on() -> None:
    data = TrainingData(graph(), CUDA)
    configs = [config_of(i, epochs=30.0, valid_every=3.0) for i in range(6)]
    configs[2] = configs[2].changed(patience=1)
    configs[3] = configs[3].changed(schedule="warmup", warmup_epochs=4000.0, lr=1e6, penalty="none")
    together = run(data, configs)
    assert isinstance(together[5], Diverged)
    for config in configs:
        assert seen(run(data, [config])[config.variation]) == seen(together[config.variation])


def test_a_stack_that_is_stopped_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingData(graph(), CUDA)
    configs = [config_of(i) for i in range(5)]
    whole = {n: seen(e) for n, e in run(data, configs).items()}

    def stop(progress: Any) -> None:
        if progress.step > 100:
            raise KeyboardInterrupt

    jobs = [Training(c, checkpoint=tmp_path / str(c.variation), watch=stop) for c in configs]
    with monkeypatch.context() as patch:
        clock = iter(range(10**9))
        patch.setattr("grash.training.loop.time.monotonic", lambda: float(next(clock)))
        with pytest.raises(KeyboardInterrupt):
            list(run_trainings(data, jobs))
    assert len(list(tmp_path.glob("*/state.json"))) == 5
    jobs = [Training(c, checkpoint=tmp_path / str(c.variation)) for c in configs]
    ended = {configs[place].variation: seen(e) for stack in run_trainings(data, jobs) for place, e in stack}
    assert ended == whole


@pytest.mark.parametrize("trials,n_entities,n,negatives", [(64, 7_776, 200_000, 700), (1, 123_182, 1_000_000, 8_803)])
def test_the_memory_plan_holds(trials: int, n_entities: int, n: int, negatives: int) -> None:
    data = TrainingData(graph(n_entities, n, 60, 5000), CUDA)
    epochs = 100 * 1024 / n
    configs = [
        config_of(i, dim=128, batch_size=1024, precision="bf16", epochs=epochs, valid_every=epochs / 2, lr=0.1,
                  negatives_tail=negatives - i, schedule="constant") for i in range(trials)
    ]  # fmt: skip
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert not any(isinstance(e, Exception) for e in run(data, configs).values())
    used, planned = torch.cuda.max_memory_allocated() - before, data.plan_memory(configs).device
    print(f"\nplanned {planned:,} bytes, used {used:,}: {used / planned:.4f}; {data.plan_memory(configs).sentence()}")
    assert abs(used - planned) < 0.05 * planned


@pytest.mark.parametrize("changes", [{}, {"variant": "epoch"}])
def test_a_search_of_stacks_is_that_of_one_after_the_other(tmp_path: Path, changes: dict[str, Any]) -> None:
    given = {"device": "cuda:0", "dim": 32, "max_epochs": 40, **changes}
    small_search(tmp_path / "plain" / "run", **given).run()
    small_search(tmp_path / "run", **{**given, "engine": "auto"}).run()
    assert essence(tmp_path / "run") == essence(tmp_path / "plain" / "run")
