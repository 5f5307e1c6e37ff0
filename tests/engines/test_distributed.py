"""One model trained by 1, 2 and 4 processes over gloo: the losses, the model and the checkpoints of one process; ranks
that are killed or interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from engines.planted import circle
from engines.ranks import launches
from grash.engines.trainer import TrainingData, run_identity, run_training
from grash.evaluation.evaluate import evaluate
from grash.models.store import load_model
from grash.training.checkpoint import TrainState, load_state
from grash.training.config import TrainConfig, make_config
from grash.training.initial import initial_model
from grash.training.loop import train_step

CPU = torch.device("cpu")
pytestmark = pytest.mark.slow
SIZES = (1, 2, 4)
DRAWN = {"batch_size": 32, "negatives_head": 12, "negatives_tail": 9, "dim": 8}
TRAININGS: dict[str, dict[str, Any]] = {
    "complex": {"model": "complex", "penalty": "n3", "penalty_entity": 0.1, "penalty_relation": 0.1},
    "complex, 1vsall, reciprocal": {
        "model": "complex", "training": "1vsall", "reciprocal": True, "dropout_entity": 0.2, "dropout_relation": 0.1,
        "optimizer": "row_adagrad",
    },
    "transe": {"model": "transe", "norm": 2, "loss": "margin", "init": "uniform", "lr": 0.03},
    "rotate": {"model": "rotate", "loss": "self_adversarial", "margin": 3, "relation_prediction": 0.3, "lr": 0.03},
}  # fmt: skip
WHOLE = {"model": "complex", "dim": 32, "batch_size": 32, "epochs": 24, "valid_every": 6, "lr": 0.2,
         "training": "1vsall", "penalty": "n3", "penalty_entity": 0.02}  # fmt: skip


def settings_of(name: str) -> dict[str, Any]:
    return {**DRAWN, **TRAININGS[name]}


@torch.no_grad()
def plain_losses(config: TrainConfig, steps: int) -> list[float]:
    dataset = circle()
    state = TrainState.fresh(initial_model(config, dataset.n_entities, dataset.n_relations), config)
    batches = TrainingData(dataset, CPU).batches(config)
    return [float(train_step(state, batches, config)) for _ in range(steps)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """All launches that end well or are meant not to, in one program."""
    folder = tmp_path_factory.mktemp("ranks")
    whole = {"task": "train", "settings": WHOLE}
    longer = {**whole, "checkpoint": "killed.checkpoint", "out": "killed", "size": 2, "save_every": 0}
    torn = {**longer, "checkpoint": "torn.checkpoint", "out": "torn"}
    moved = {**whole, "checkpoint": "moved.checkpoint", "out": "moved"}
    everyone = list("0123")
    plan = [
        *({"size": size, "task": "losses", "settings": [settings_of(n) for n in TRAININGS], "steps": 50,
           "out": f"losses-{size}.json"} for size in SIZES),
        *({"size": size, **whole, "checkpoint": f"whole-{size}.checkpoint", "out": f"whole-{size}"} for size in SIZES),
        {**longer, "happens": {"ranks": ["1"], "step": 70, "signal": "SIGKILL"}},
        longer,
        *({"size": size, **moved, "happens": {"ranks": ranks, "step": step, "signal": "SIGINT"}}
          for size, ranks, step in ((2, ["1"], 20), (4, everyone, 60), (1, ["0"], 90))),
        {"size": 2, **moved},
        {"size": 2, "task": "alike"},
        {"size": 4, **whole, "checkpoint": "left.checkpoint", "out": "left",
         "happens": {"ranks": ["0"], "step": 50, "signal": "SIGINT"}},
        {"size": 2, **whole, "checkpoint": "told.checkpoint", "out": "told",
         "happens": {"ranks": ["1"], "step": 5, "signal": "SIGTERM"}},
        {**torn, "happens": {"ranks": ["0"], "renames": True, "signal": "SIGKILL"}},
        torn,
    ]  # fmt: skip
    return folder, launches(folder, plan)


def test_all_launches_end_as_they_should(run: Any) -> None:
    _, found = run
    codes = [launch["codes"] for launch in found]
    assert codes[:6] == [[0] * size for size in (*SIZES, *SIZES)], [launch["said"] for launch in found[:6]]
    assert codes[6:8] == [[8, -signal.SIGKILL], [0, 0]]
    assert codes[8:12] == [[130] * 2, [130] * 4, [130], [0] * 2], [launch["said"] for launch in found[8:12]]
    assert codes[12:15] == [[2, 2], [130] * 4, [8, 8]]
    assert codes[15:] == [[-signal.SIGKILL, 8], [0, 0]]


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_of_50_steps_are_those_of_one_process(run: Any, name: str) -> None:
    folder, _ = run
    plain = plain_losses(make_config(settings_of(name)), 50)
    assert plain[-1] < plain[0]
    one: list[float] = []
    for size in SIZES:
        losses = json.loads((folder / f"losses-{size}.json").read_text())[list(TRAININGS).index(name)]
        assert losses == pytest.approx(plain, rel=1e-5), f"{size} ranks"
        one = one or losses
        assert losses == pytest.approx(one, rel=1e-6), f"{size} ranks"


def test_the_model_is_that_of_one_process(run: Any) -> None:
    folder, _ = run
    dataset = circle()
    plain = run_training(dataset, make_config(WHOLE), device="cpu")
    wanted = evaluate(plain.model, dataset).both.mrr
    assert wanted > 0.8
    for size in SIZES:
        stored = load_model(folder / f"whole-{size}")
        tested = evaluate(stored.model, stored.dataset).to_dict()
        assert tested == {**stored.evaluation, "filter": tested["filter"], "mrr_interval": tested["mrr_interval"]}
        assert stored.evaluation["both"]["mrr"] == pytest.approx(wanted, abs=0.005)
        assert [v["step"] for v in stored.history] == [v.step for v in plain.history]
        assert [v["mrr"] for v in stored.history] == pytest.approx([v.mrr for v in plain.history], abs=0.005)
        assert not (folder / f"whole-{size}.checkpoint").exists()
        tables, one = (load_file(folder / f"whole-{n}" / "embeddings.safetensors") for n in (size, 1))
        assert np.allclose(tables["entity"], one["entity"], atol=1e-6)


def test_a_killed_rank_ends_the_others_and_the_run_goes_on_to_the_same_result(run: Any) -> None:
    folder, found = run
    assert (
        "Rank 0 of 2 lost contact with the other ranks" in found[6]["said"][0]
        and "last checkpoint" in found[6]["said"][0]
    )
    assert found[6]["seconds"] < 120, "a rank that is alive is waited for ten minutes"
    resumed, whole = (load_file(folder / name / "embeddings.safetensors") for name in ("killed", "whole-2"))
    for table in ("entity", "relation"):
        assert np.array_equal(resumed[table], whole[table])
    assert not list(folder.glob(".killed*")), "what the killed rank left was not cleared away"


def test_a_rank_that_is_killed_between_two_renames_loses_nothing(run: Any) -> None:
    folder, found = run
    begun = [int(said.split("begins at step ")[1].split()[0]) for said in found[16]["said"]]
    assert begun[0] == begun[1] > 0, "it began anew"
    resumed, whole = (load_file(folder / name / "embeddings.safetensors") for name in ("torn", "whole-2"))
    for table in ("entity", "relation"):
        assert np.array_equal(resumed[table], whole[table])
    assert not list(folder.glob(".torn*")), "what the killed rank left was not cleared away"


def test_a_rank_that_is_told_to_end_says_so(run: Any) -> None:
    _, found = run
    assert (
        "Rank 1 of 2 received SIGTERM" in found[14]["said"][1]
        and "lost contact with the other ranks" in found[14]["said"][0]
    )
    assert found[14]["seconds"] < 120


def test_an_interrupted_run_goes_on_with_another_number_of_ranks(run: Any) -> None:
    folder, _ = run
    moved, whole = (load_file(folder / name / "embeddings.safetensors") for name in ("moved", "whole-1"))
    for table in ("entity", "relation"):
        assert np.allclose(moved[table], whole[table], atol=1e-5)


def test_one_process_goes_on_with_a_checkpoint_of_several(run: Any) -> None:
    folder, _ = run
    config, dataset = make_config(WHOLE), circle()
    state = TrainState.fresh(initial_model(config, dataset.n_entities, dataset.n_relations), config)
    load_state(state, folder / "left.checkpoint", belongs_to=run_identity(dataset, config, None))
    assert state.step >= 50
    ended = run_training(dataset, config, device="cpu", checkpoint=folder / "left.checkpoint")
    assert ended.step == TrainingData(dataset, CPU).batches(config).plan.n_steps
    whole = load_file(folder / "whole-1" / "embeddings.safetensors")
    assert np.allclose(ended.model.entity.numpy(), whole["entity"], atol=1e-3)


def test_ranks_with_other_settings_are_refused(run: Any) -> None:
    _, found = run
    assert "Rank 1 differs from rank 0 in its settings:" in found[12]["said"][0]


def test_torchrun_trains_ends_with_a_killed_rank_and_goes_on(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "grash", "train", "world"]
    words += ["--dim", "8", "--valid-every", "1", "--negatives", "50", "-o", "out", "--device", "cpu", "--epochs"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "said.txt").open("w") as said:
        going = subprocess.Popen([*words, "1000"], cwd=tmp_path, env=env, stderr=said, stdout=said)
    try:
        ranks = wait_for_ranks(going.pid, tmp_path / "said.txt")
        os.kill(ranks[1], signal.SIGKILL)
        assert going.wait(timeout=120) != 0
    finally:
        going.kill()
    text = (tmp_path / "said.txt").read_text()
    assert "The same command resumes from the last checkpoint" in text and "2 ranks" in text
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    ended = subprocess.run([*words, "1"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "head and tail" in ended.stdout and load_model(tmp_path / "out").model.dim == 8


def wait_for_ranks(launcher: int, said: Path) -> list[int]:
    """The process ids of both ranks, once they train."""
    until = time.monotonic() + 180
    while time.monotonic() < until:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        if len(children) == 2 and "best valid MRR" in said.read_text():
            return [int(child) for child in children]
        time.sleep(0.2)
    raise AssertionError(said.read_text())
