"""Which placement fits: the order in which they are tried, what is said when none does, and what a plan counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engines.planted import circle
from engines.searches import essence, small_search
from grash.engines import memory
from grash.engines import memory as placing
from grash.engines.memory import MemoryPlan, choose_placement, plan_memory
from grash.engines.trainer import TrainingData
from grash.errors import ConfigError, MemoryPlanError
from grash.kernels.storage import Placement, is_offloaded
from grash.training.config import make_config
from grash.training.optimizers import TableOptimizer
from small_graph import grash, rings, write_tsv

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
E, R, N = 1_000_000, 100, 5_000_000
GIB = 1 << 30
CONFIG = make_config({"dim": 128})
ROWS = 4 * E * 128  # bytes of the table, and of Adagrad's state
HALF = "With storage=bf16 (two bytes per float) it would take 244.1 MiB less"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Free bytes of a card, of the memory and of the disk that are not there."""
    free = {"cuda": 80 * GIB, "cpu": 100 * GIB, "disk": 100 * GIB}
    monkeypatch.setattr(placing, "free_bytes", lambda device: free[device.type])
    monkeypatch.setattr(placing, "free_disk", lambda folder: free["disk"])
    monkeypatch.setattr(memory, "uses_fused_step", lambda config, device: False)
    monkeypatch.setattr(memory, "ranking_bytes", lambda *given, **more: 1 << 20)
    return free


def place(device: torch.device, **more: Any) -> MemoryPlan:
    return choose_placement(more.pop("config", CONFIG), E, R, N, device, n_valid=1000, **more)


def test_everything_lies_on_the_device_where_it_fits(machine: dict[str, int], tmp_path: Path) -> None:
    for device in (CPU, CUDA):
        found = place(device, folder=tmp_path)
        assert found.placement == Placement() and found.note == "" and found.memory == found.best_tables
        assert found.disk == found.entities == found.entity_optimizer == 0


def test_a_small_card_gets_its_rows_from_host_memory(machine: dict[str, int], tmp_path: Path) -> None:
    machine["cuda"] = ROWS
    found = place(CUDA, folder=tmp_path)
    assert found.placement == Placement("host") and found.entities == found.entity_optimizer == ROWS
    assert found.device < machine["cuda"] and found.memory == 2 * ROWS + found.best_tables
    said = found.sentence()
    assert "976.6 MiB in host memory (entities 488.3 MiB, their optimizer state 488.3 MiB)" in said
    lean, half = "With optimizer=row_adagrad (one number per row) it would take 484.5 MiB less", HALF
    fits = ", and everything would fit on cuda:0"
    assert said.endswith(f". {lean}. {half}. With both it would take 728.6 MiB less{fits}")
    assert place(CUDA, config=CONFIG.changed(optimizer="row_adagrad", storage="bf16")).placement == Placement()
    machine["cuda"] = ROWS // 2
    assert place(CUDA).sentence().endswith(f". {lean}. {half}")  # both together are not enough
    machine["cuda"] = int(1.6 * ROWS)  # the table alone would fit
    assert place(CUDA).sentence().endswith(f"{lean}{fits}. {half}")
    assert place(CUDA, config=CONFIG.changed(optimizer="row_adagrad")).placement == Placement()
    machine["cuda"] = int(1.9 * ROWS)  # and half of it beside the state
    assert place(CUDA).sentence().endswith(f"{lean}{fits}. {half}{fits}")
    assert place(CUDA, config=CONFIG.changed(storage="bf16")).placement == Placement()


def test_only_what_can_be_changed_is_offered(machine: dict[str, int]) -> None:
    machine["cuda"] = 5 * ROWS  # adam's step takes four tables
    assert "bf16" not in place(CUDA, config=CONFIG.changed(optimizer="adam")).note
    machine["cuda"] = ROWS // 2
    notes = {
        (optimizer, storage): place(CUDA, config=CONFIG.changed(optimizer=optimizer, storage=storage)).note
        for optimizer, storage in (("row_adagrad", "float32"), ("adagrad", "bf16"), ("row_adagrad", "bf16"),
                                   ("sgd", "float32"))
    }  # fmt: skip
    assert notes["row_adagrad", "float32"] == HALF and notes["row_adagrad", "bf16"] == ""
    assert notes["adagrad", "bf16"].startswith("With optimizer=row_adagrad") and "bf16" not in notes["adagrad", "bf16"]
    assert "row_adagrad" not in notes["sgd", "float32"] and "storage=bf16" in notes["sgd", "float32"]


def test_best_weights_go_to_disk_where_memory_has_no_room_for_them(machine: dict[str, int], tmp_path: Path) -> None:
    machine.update(cuda=ROWS, cpu=int(2.5 * ROWS))
    found = place(CUDA, folder=tmp_path)
    assert found.placement == Placement("host", tmp_path)
    assert found.memory == 2 * ROWS and found.disk == found.best_tables
    assert "on disk for the best weights" in found.sentence()
    with pytest.raises(MemoryPlanError, match="With placement=host: .* of host memory, only .* is free"):
        place(CUDA)  # no folder to write to
    machine["disk"] = ROWS // 2
    with pytest.raises(MemoryPlanError, match=r"With placement=host: .* on the disk of .* is free"):
        place(CUDA, folder=tmp_path)


def test_a_cpu_with_less_memory_than_the_model_maps_files(machine: dict[str, int], tmp_path: Path) -> None:
    machine["cpu"] = 2 * ROWS
    found = place(CPU, folder=tmp_path)
    assert found.placement == Placement("disk", tmp_path) and found.memory == 0
    assert found.disk == 2 * ROWS + found.best_tables and found.device < ROWS
    assert "976.6 MiB on disk (entities 488.3 MiB, their optimizer state 488.3 MiB)" in found.sentence()
    with pytest.raises(
        MemoryPlanError, match=r"needs .* on cpu, only .* is free: .*Try a smaller dim, .*, or storage=bf16"
    ):
        place(CPU)


def test_what_is_asked_for_is_done_or_refused(machine: dict[str, int], tmp_path: Path) -> None:
    assert place(CUDA, placement="host", folder=tmp_path).placement == Placement("host")
    assert place(CPU, placement="disk", folder=tmp_path).placement == Placement("disk", tmp_path)
    machine["cuda"] = ROWS
    with pytest.raises(MemoryPlanError, match="needs .* on cuda:0, only 488.3 MiB is free"):
        place(CUDA, placement="device", folder=tmp_path)
    with pytest.raises(ConfigError, match="placement=disk needs device=cpu"):
        place(CUDA, placement="disk", folder=tmp_path)
    with pytest.raises(ConfigError, match="needs a folder"):
        place(CPU, placement="disk")


@pytest.mark.parametrize(
    ("optimizer", "storage"),
    [(o, s) for o in ("adagrad", "row_adagrad", "adam", "lazy_adam", "sgd") for s in ("float32", "bf16")
     if (o, s) != ("adam", "bf16")],
)  # fmt: skip
def test_a_plan_counts_every_byte_of_rows_and_state_once(optimizer: str, storage: str, tmp_path: Path) -> None:
    config = make_config({"dim": 6, "model": "cp", "reciprocal": True, "optimizer": optimizer, "storage": storage})
    whole = plan_memory([config], 100, 7, 1000, CPU)
    for placement in (Placement("host"), Placement("host", tmp_path), Placement("disk", tmp_path)):
        elsewhere = plan_memory([config], 100, 7, 1000, CPU, placement=placement)
        state = sum(t.nbytes for t in TableOptimizer(optimizer, torch.zeros(100, 6)).state.values())
        assert (elsewhere.entities, elsewhere.entity_optimizer) == (2400 if storage == "float32" else 1200, state)
        assert elsewhere.tables + elsewhere.entities == whole.tables
        assert elsewhere.optimizer + elsewhere.entity_optimizer == whole.optimizer
        total = elsewhere.device + elsewhere.memory + elsewhere.disk
        assert total == whole.device + whole.memory and elsewhere.best_tables == whole.best_tables


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    assert abs(placing.free_disk(tmp_path / "a" / "b") - placing.free_disk(tmp_path)) < GIB


def test_the_command_line_places_and_says_so(tmp_path: Path) -> None:
    source = write_tsv(rings(), tmp_path / "rings.tsv")
    words = ("--dim", 8, "--epochs", 2, "--device", "cpu", "--threads", 1, "--json")
    ran = grash("train", source, "-o", tmp_path / "m", "--placement", "disk", *words)
    assert ran.code == 0 and "on disk (entities " in ran.err and "With optimizer=row_adagrad" in ran.err
    plain = grash("train", source, "-o", tmp_path / "n", *words)
    tables = [(tmp_path / name / "embeddings.safetensors").read_bytes() for name in ("m", "n")]
    assert plain.code == 0 and tables[0] == tables[1]
    refused = grash("train", source, "-o", tmp_path / "o", "--placement", "tape", *words)
    assert refused.code == 2 and "--placement tape is unknown" in refused.err


def test_a_final_training_that_does_not_fit_is_noted_in_the_plan_of_a_search(
    machine: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from grash.api.search import Search

    machine["cpu"] = 1000
    monkeypatch.setattr(placing, "free_disk", lambda folder: 1 << 40)
    found = str(Search(circle(), n_trials=4, dim=8, device="cpu").plan(probe=False))
    assert "final: it does not fit with these settings." in found and "With placement=disk" in found


@pytest.mark.slow
def test_the_final_training_of_a_search_is_the_same_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    real = TrainingData.choose_placement

    def place(*given: Any, **more: Any) -> MemoryPlan:
        kinds.append(more.get("placement", "auto"))
        return real(*given, **more)

    small_search(tmp_path / "a" / "run").run()
    monkeypatch.setattr(TrainingData, "choose_placement", place)
    small_search(tmp_path / "b" / "run", placement="disk").run()
    assert essence(tmp_path / "b" / "run") == essence(tmp_path / "a" / "run")
    assert kinds[0] == kinds[-1] == "disk" and set(kinds[1:-1]) == {"auto"}, "plan, trials, final training"
    with pytest.raises(ConfigError, match="placement='far' is unknown"):
        small_search(tmp_path / "c", placement="far")


def test_best_weights_go_to_disk_where_host_memory_lacks_room_for_them(machine: dict[str, int], tmp_path: Path) -> None:
    machine["cpu"] = ROWS // 2
    found = place(CUDA, folder=tmp_path)
    assert found.placement == Placement("device", tmp_path) and not found.placement.offloaded
    assert found.memory == 0 and found.disk == found.best_tables >= ROWS
    assert "on disk for the best weights" in found.sentence()
    kept = found.placement.best_rows(torch.ones(3, 2))
    assert is_offloaded(kept) and kept.shape == (3, 2)
    with pytest.raises(MemoryPlanError, match="of host memory, only .* is free"):
        place(CUDA, placement="device")
    assert place(CUDA, keep_best=False).placement == Placement()  # a trial keeps none


def test_row_adagrad_is_said_to_fit_only_where_its_own_plan_does(machine: dict[str, int], tmp_path: Path) -> None:
    machine["cpu"] = int(1.5 * ROWS)  # a table, and half of the best weights
    found = place(CPU, folder=tmp_path)
    assert found.placement.kind == "disk" and "it would take 484.5 MiB less. With storage=bf16" in found.note
    machine["cpu"] = int(2.5 * ROWS)
    assert "484.5 MiB less, and everything would fit on cpu. With storage=bf16" in place(CPU, folder=tmp_path).note
