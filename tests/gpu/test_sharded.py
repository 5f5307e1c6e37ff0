"""Ranks on a card: one with NCCL, two that share it through the host. The model of one process comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SOURCE = Path(__file__).resolve().parents[2] / "src"
TRAIN = ["-m", "grash", "train", "world", "--json", "--quiet", "--dim", "32", "--epochs", "10", "--valid-every", "5"]
TRAIN += ["--set", "precision=float32", "--negatives", "100"]


def trained(folder: Path, *words: str) -> dict[str, Any]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
        "GRASH_KERNELS": "reference",
    }
    ran = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout[ran.stdout.index("{") :])
    return found


@pytest.mark.parametrize("training", ["negative_sampling", "1vsall", "kvsall"])
@pytest.mark.parametrize(("ranks", "device"), [(1, "auto"), (2, "cuda:0")])
def test_ranks_on_a_card_train_the_same_model(tmp_path: Path, training: str, ranks: int, device: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0"]
    words = [*TRAIN, "--training", training]
    plain = trained(tmp_path, *words, "-o", "plain", "--device", "cuda:0")
    found = trained(tmp_path, *launcher, *words, "-o", "ranks", "--device", device)
    for a, b in zip(plain["history"], found["history"]):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-3)
    assert found["evaluation"]["both"]["mrr"] == pytest.approx(plain["evaluation"]["both"]["mrr"], abs=0.005)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_cards_of_their_own_train_the_same_model(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0"]
    plain = trained(tmp_path, *TRAIN, "-o", "plain", "--device", "cuda:0")
    found = trained(tmp_path, *launcher, *TRAIN, "-o", "ranks")
    assert found["evaluation"]["both"]["mrr"] == pytest.approx(plain["evaluation"]["both"]["mrr"], abs=0.005)
