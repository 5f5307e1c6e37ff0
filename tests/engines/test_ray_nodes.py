"""What a trial gets of a Ray cluster, and what becomes of nodes on which none can begin; the cluster is made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.fake_ray import GIB, FakeNode, FakeRay, task_of
from engines.searches import shifts
from grash.data.dataset import Dataset
from grash.engines import processes
from grash.engines import ray as ray_engine
from grash.engines.memory import plan_memory
from grash.engines.ray import (
    Node,
    RayEngine,
    RayWorker,
    Resources,
    capable_nodes,
    node_of,
    plan_final_training,
    trial_resources,
)
from grash.errors import GrashError
from grash.kernels.storage import Placement
from grash.training.config import make_config
from grash.training.loop import Progress


@pytest.fixture
def engine_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayEngine]:
    """An engine on a made-up cluster, where a moment takes no time."""

    def make(ray: FakeRay, **options: Any) -> RayEngine:
        monkeypatch.setattr(ray_engine, "connect", lambda address: (ray, False))
        monkeypatch.setattr(ray_engine, "_SAME_FAILURE_SECONDS", 0.0)
        return RayEngine(tmp_path, **options)

    return make


def test_a_trial_gets_a_share_of_its_node_by_its_memory() -> None:
    def memory(n_bytes: int) -> float:
        return trial_resources(task_of(n_bytes), 2, node_bytes=10 * GIB, gpu_bytes=None).memory / GIB

    assert [memory(n) for n in (0, 1, GIB // 2, GIB, 5 * GIB)] == [0.5, 1.0, 1.0, 2.0, 8.0]
    assert memory(9 * GIB) == memory(50 * GIB) == 10.0  # the whole node: a trial that is alone is always tried
    assert trial_resources(task_of(0), 2, node_bytes=GIB, gpu_bytes=None) == Resources(2, GIB // 2)


def test_up_to_three_trials_share_a_card_as_its_memory_admits() -> None:
    def gpus(n_bytes: float) -> float:
        return trial_resources(task_of(n_bytes), 1, node_bytes=64 * GIB, gpu_bytes=10 * GIB).gpus

    assert [gpus(n * GIB) for n in (0.1, 3, 3.1, 4.5, 4.6, 9, 40)] == [1 / 3, 1 / 3, 1 / 2, 1 / 2, 1, 1, 1]
    assert trial_resources(task_of(4 * GIB), 1, node_bytes=64 * GIB, gpu_bytes=10 * GIB).memory == 4 * GIB


def test_a_trial_that_is_larger_than_a_card_has_its_tables_in_the_memory_of_the_node() -> None:
    share = trial_resources(task_of(30 * GIB), 1, node_bytes=64 * GIB, gpu_bytes=10 * GIB)
    assert share == Resources(1, 32 * GIB, 1.0)


def test_a_worker_serves_what_is_not_larger() -> None:
    assert Resources(1, 4, 0.5).covers(Resources(1, 4, 0.5)) and Resources(1, 4, 0.5).covers(Resources(1, 2, 1 / 3))
    assert not Resources(1, 4, 0.5).covers(Resources(1, 8, 0.5)) and not Resources(1, 4, 0.5).covers(Resources(1, 4, 1))
    assert str(Resources(1, 2 * GIB, 1 / 3)) == "1 CPU, 2.0 GiB, 0.33 of a GPU"


def test_trials_go_by_the_nodes_that_can_run_them() -> None:
    head = Node("h", "head", "", 0, 0, 100)
    plain, cards, few = (
        Node("a", "plain", "", 8, 0, 50),
        Node("b", "cards", "", 8, 2, 20),
        Node("c", "few", "", 1, 2, 99),
    )
    nodes = [head, plain, cards, few]
    assert capable_nodes(nodes, 2, gpu=False) == [plain, cards] and capable_nodes(nodes, 2, gpu=True) == [cards]
    assert capable_nodes(nodes, 1, gpu=True) == [cards, few]


class TestTheFinalTraining:
    dataset = Dataset(*(getattr(shifts(), split) for split in ("train", "valid", "test")), 20_000_000, 7, name="large")
    config = make_config({"dim": 128})  # tables of 9.5 GiB, as much for Adagrad, as much for the best weights

    def share(self, placement: str, card_gib: int | None, **changes: Any) -> tuple[float, int]:
        """GPUs and GiB."""
        final = task_of(0, config={**self.config.model_dump(), **changes}, final=True, placement=placement)
        card = None if card_gib is None else card_gib * GIB
        plan = plan_final_training(final, self.dataset, torch.device("cpu"), gpu_bytes=card)
        share = trial_resources(final, 1, node_bytes=128 * GIB, gpu_bytes=card, plan=plan)
        return share.gpus, share.memory // GIB

    def test_reserves_what_its_placement_keeps_in_the_memory_of_the_node(self) -> None:
        assert self.share("host", 10) == (1 / 3, 32)  # entities, their state and the best weights
        assert self.share("device", 24) == (1, 16)  # the best weights
        assert self.share("device", 80) == (1 / 3, 16)
        assert self.share("host", 10, optimizer="row_adagrad") == (1 / 3, 32)
        assert self.share("device", 24, optimizer="row_adagrad") == (1 / 2, 16)  # all that is on the card, once more

    def test_lies_on_the_card_only_if_it_fits_there(self) -> None:
        assert self.share("auto", 24) == self.share("device", 24) and self.share("auto", 20) == (1 / 3, 32)

    def test_on_cpus_needs_memory_for_all_but_what_is_on_disk(self) -> None:
        assert self.share("auto", None) == self.share("host", None) == (0.0, 32)
        assert self.share("disk", None) == (0.0, 1)

    def test_is_asked_for_by_that_plan(self, engine_on: Callable[..., RayEngine]) -> None:
        ray = FakeRay()
        engine = engine_on(ray)
        engine._dataset = self.dataset
        task = task_of(19 * GIB, config=self.config.model_dump(), final=True, placement="host")
        far = plan_memory(
            [self.config], 20_000_000, 7, len(self.dataset.train), torch.device("cpu"), placement=Placement("host")
        )
        assert engine.start(task) is None and engine.start(task) == "cuda"
        assert ray.asked == [(1 / 3, 32)] and far.memory > 28 * GIB

    @pytest.mark.parametrize(("final_threads", "cpus"), [(1, 2), (4, 4), (64, 8)])
    def test_gets_its_threads_or_all_that_a_node_has(
        self, engine_on: Callable[..., RayEngine], final_threads: int, cpus: int
    ) -> None:
        engine = engine_on(FakeRay([FakeNode("north", cpus=8)]), threads=2, final_threads=final_threads)
        engine._dataset = self.dataset
        task = task_of(GIB, config=self.config.model_dump())
        shares = [engine._resources(replace(task, final=final)) for final in (False, True)]
        assert [s and s.cpus for s in shares] == [2, cpus]


def test_a_finalist_that_is_trained_to_the_end_asks_for_its_threads(engine_on: Callable[..., RayEngine]) -> None:
    engine = engine_on(FakeRay([FakeNode("north", cpus=8)]), threads=2, end_threads=4, final_threads=8)
    needed = [engine._resources(replace(task_of(GIB), keep_best=keep_best)) for keep_best in (False, True)]
    assert [each and each.cpus for each in needed] == [2, 4]


def test_a_large_head_that_takes_no_trials_is_not_what_they_ask_for(engine_on: Callable[..., RayEngine]) -> None:
    ray = FakeRay([FakeNode("head", gib=64, cpus=0), FakeNode("east", gib=16), FakeNode("west", gib=16)])
    engine = engine_on(ray)
    assert [engine.start(task_of(20 * GIB)) for _ in range(2)] == [None, "cpu"] and ray.asked == [(0, 16)]


def test_nothing_is_asked_for_while_no_node_can_take_it(
    engine_on: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cards = FakeNode("cards", gpus=1)
    ray = FakeRay([FakeNode("plain"), cards])
    engine = engine_on(ray)
    assert [engine.start(task_of(GIB)) for _ in range(2)] == [None, "cuda"] and ray.asked == [(1 / 3, 1)]
    engine._workers.clear()
    cards.alive = False
    assert [engine.start(task_of(GIB)) for _ in range(3)] == [None] * 3
    assert len(ray.asked) == 1 and ray.probes == 2  # what waits for a card, whatever the size of its node
    monkeypatch.setattr(ray_engine, "_WARN_SECONDS", -1.0)
    assert engine.start(task_of(GIB)) is None and "configuration 0 in round 1 waits for a GPU" in caplog.text
    cards.alive, engine._probe = True, None
    assert [engine.start(task_of(GIB)) for _ in range(2)] == [None, "cuda"] and ray.asked[1:] == [(1 / 3, 1)]


def test_workers_that_wait_for_a_node_that_is_gone_make_room(engine_on: Callable[..., RayEngine]) -> None:
    large = FakeNode("large", gib=64, cpus=2)
    ray = FakeRay([large, FakeNode("small", gib=16)])
    engine = engine_on(ray, workers=1)
    ray.wait = lambda refs, **how: ([], refs)  # type: ignore[method-assign]
    assert engine.start(task_of(20 * GIB)) is None and ray.asked == [(0, 32)]
    large.alive = False
    assert engine.start(task_of(20 * GIB)) is None and ray.asked[1:] == [(0, 16)] and len(ray.killed) == 1


def test_trials_on_cards_get_workers_of_their_size(engine_on: Callable[..., RayEngine]) -> None:
    ray = FakeRay()
    engine = engine_on(ray, workers=2)
    small, large = task_of(2 * GIB), task_of(6 * GIB)
    assert [engine.start(small) for _ in range(2)] == [None, "cuda"] and ray.asked == [(1 / 3, 2)]
    assert [engine.start(large) for _ in range(2)] == [None, "cuda"] and ray.asked[1:] == [(1, 4)]
    assert engine.start(small) is None and len(ray.asked) == 2  # both workers are busy, and there may be two
    engine._workers[0].trial = engine._workers[1].trial = None
    assert engine.start(small) == "cuda" and engine._workers[0].trial is small  # the smaller of the two
    assert engine.start(large) == "cuda" and not ray.killed
    engine._workers[0].trial = None
    assert engine.start(large) is None and len(ray.killed) == 1  # too small for it, it makes room
    assert ray.asked[2:] == [(1, 4)]
    engine.close()
    assert len(ray.killed) == 3 and not engine._workers


def test_a_trial_has_its_time_limit_from_its_first_heartbeat_on(
    engine_on: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, told = 1000.0, []
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    ray = FakeRay([FakeNode("north")])
    engine, task = engine_on(ray, timeout=5.0), task_of(GIB)

    def after(seconds: float, beat: tuple[int, Progress] | None) -> list[Any]:
        nonlocal now
        ray.beat, now = beat, now + seconds
        return [
            ended for _ in range(2) for ended in engine.wait(lambda trial, progress: told.append(progress))
        ]  # it is asked, and it answers

    assert [engine.start(task) for _ in range(2)] == [None, "cpu"]
    assert after(3600, None) == [], "the graph is being cut"
    other, first, second = ((r, Progress(s, 10, 0.5, 0.1, 1.0, 1.0, 1.0, None)) for r, s in ((2, 9), (1, 1), (1, 2)))
    assert after(1800, other) == [] == told, "it is of another round"
    assert (
        after(1800, first) == []
        and after(34, second) == []
        and after(34, second) == []
        and told == [first[1], second[1]]
    )
    [lost] = after(2, second)
    assert lost.status == "timeout" and "reported nothing for 35 s" in lost.message and len(ray.killed) == 1


def test_a_worker_that_is_never_heard_of_loses_its_trial_as_a_killed_one(
    engine_on: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay([FakeNode("north")])
    engine, task = engine_on(ray), task_of(GIB)
    assert [engine.start(task) for _ in range(2)] == [None, "cpu"] and engine.wait(print) == []
    monkeypatch.setattr(processes, "START_SECONDS", -1.0)
    [lost] = engine.wait(print)
    assert lost.status == "killed" and "its training had not started" in lost.message and len(ray.killed) == 1


def test_a_trial_that_finds_no_room_is_said_to_wait(
    engine_on: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = FakeRay()
    monkeypatch.setattr(ray, "wait", lambda refs, **how: ([], refs))
    monkeypatch.setattr(ray_engine, "_WARN_SECONDS", -1.0)
    for options, need in (
        ({"device": "cuda"}, "a GPU"),
        ({"device": "cpu"}, "1 CPU, 512.0 MiB"),
        ({"device": "cpu", "threads": 16}, "16 CPUs"),
    ):
        assert engine_on(ray, **options).start(task_of(0)) is None
        assert f"configuration 0 in round 1 waits for {need}, which no node" in caplog.text


class TestANodeOnWhichNothingBegins:
    def test_is_left_out_after_three_times_and_the_others_go_on(
        self, engine_on: Callable[..., RayEngine], caplog: pytest.LogCaptureFixture
    ) -> None:
        ray = FakeRay([FakeNode("north", fault="RuntimeError: CUDA out of memory."), FakeNode("south")])
        engine = engine_on(ray, device="cpu")
        assert [engine.start(task_of(0)) for _ in range(5)] == [None] * 4 + ["cpu"]
        assert ray.named == ["", "", "", "in(id-south)"] and engine._workers[0].node == "south"
        assert (
            "north gets no more trials, because no worker could start there: RuntimeError: CUDA out of" in caplog.text
        )

    def test_is_forgiven_once_it_begins(self, engine_on: Callable[..., RayEngine]) -> None:
        north = FakeNode("north", fault="OSError: Stale file handle.")
        ray = FakeRay([north])
        engine = engine_on(ray, device="cpu")
        for _ in range(3):
            north.fault = "OSError: Stale file handle."
            assert [engine.start(task_of(0)) for _ in range(2)] == [None] * 2  # two are asked for that cannot begin
            north.fault = ""
            assert [engine.start(task_of(0)) for _ in range(2)] == [None, "cpu"]
            engine._workers.clear()

    def test_a_fault_that_many_workers_meet_at_once_counts_once(
        self, engine_on: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = engine_on(FakeRay([FakeNode("north", fault="OSError: Stale file handle.")]), device="cpu")
        monkeypatch.setattr(ray_engine, "_SAME_FAILURE_SECONDS", 5.0)
        assert [engine.start(task_of(0)) for _ in range(20)] == [None] * 20

    def test_ends_the_search_if_there_is_no_other_and_every_one_is_named(
        self, engine_on: Callable[..., RayEngine]
    ) -> None:
        nodes = [FakeNode("head", cpus=0), FakeNode("north", fault="/shared/run is no run folder.")]
        nodes += [FakeNode("south", fault="OSError: Stale file handle."), FakeNode("western", fault=nodes[1].fault)]
        engine = engine_on(FakeRay(nodes), device="cpu")
        begin = (
            "No worker could start on any node of the Ray cluster. On north, western: /shared/run is no run folder. "
        )
        with pytest.raises(
            GrashError, match=begin + "On south: OSError: Stale file handle. Every node needs grash, and"
        ):
            for _ in range(20):
                assert engine.start(task_of(0)) is None

    def test_is_known_by_its_address_if_its_workers_die(self, engine_on: Callable[..., RayEngine]) -> None:
        died = RuntimeError("The actor died because of an error raised in its creation task, (pid=7, ip=10.0.0.5)")
        ray = FakeRay([FakeNode("north", fault=died), FakeNode("eastern")])
        engine = engine_on(ray, device="cpu")
        assert [engine.start(task_of(0)) for _ in range(5)][-1] == "cpu" and engine._workers[0].node == "eastern"

    def test_or_not_at_all(self, engine_on: Callable[..., RayEngine]) -> None:
        engine = engine_on(FakeRay([FakeNode("north", fault=RuntimeError("The actor died"))]), device="cpu")
        with pytest.raises(GrashError, match="Ray's workers ended 3 times in a row before they started: The actor"):
            for _ in range(9):
                engine.start(task_of(0))

    def test_is_found_by_what_looks_for_cards_too(self, engine_on: Callable[..., RayEngine]) -> None:
        died = RuntimeError("CUDA error: an illegal state\n\tip: 10.0.0.5")
        engine = engine_on(FakeRay([FakeNode("north", gpus=1, fault=died)]))
        with pytest.raises(GrashError, match="On north: CUDA error: an illegal state"):
            for _ in range(9):
                assert engine.start(task_of(0)) is None


def test_the_place_of_a_death_is_known_if_one_node_alone_has_the_address() -> None:
    nodes = [Node("a", "north", "10.0.0.1", 1, 0, 1), Node("b", "south", "10.0.0.2", 1, 0, 1)]
    assert node_of(RuntimeError("(pid=3, ip=10.0.0.2, actor_id=5)"), nodes) == nodes[1]
    assert node_of(RuntimeError("\tpid: 3\n\tip: 10.0.0.1\nThe actor's worker was killed."), nodes) == nodes[0]
    assert node_of(RuntimeError("nothing of that"), nodes) is None
    assert node_of(RuntimeError("ip=10.0.0.2"), [nodes[1], nodes[1]]) is None


def test_a_worker_says_why_it_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(ray_engine, "_node_id", lambda: "id-north")
    worker = RayWorker(str(tmp_path / "nowhere"), "cpu", None, "")
    assert "nowhere is not the run folder" in json.loads(worker.begin())["error"]
    monkeypatch.setattr("grash.engines.local.read_settings", full)
    assert json.loads(worker.begin()) == {"error": "RuntimeError: CUDA error: out of memory.", "id": "id-north"}
