"""Engine `ray` agrees with `sequential` on a cluster of three nodes, whatever of it is killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.searches import essence, events_of, shifts, small_search, state_of
from engines.storm import Life, storm
from grash.api import search as api_search
from grash.engines import ray as ray_engine
from grash.engines.choose import check_engine, choose_engine
from grash.engines.ray import RayEngine, RayWorker, Resources, alive_nodes, check_versions, versions
from grash.engines.trainer import run_training
from grash.errors import ConfigError, GrashError, InputError
from grash.evaluation.evaluate import evaluate
from grash.models.store import load_model
from grash.search.callbacks import OnChange
from grash.search.ledger import SearchState
from grash.search.trial import Trial
from grash.training.config import make_config
from grash.training.loop import Progress

GIB = 1 << 30
# trials that last long enough (some tenths of a second) to be met while they run
LONG: dict[str, Any] = {"n_trials": 4, "eta": 4, "max_epochs": 60, "final_train": False}
# a node that is killed is missed after a second, not after fifteen
_QUICK = {
    "health_check_initial_delay_ms": 500, "health_check_period_ms": 300, "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 3, "gcs_rpc_server_reconnect_timeout_s": 5,
}  # fmt: skip
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A token of these tests' own, so that Ray neither uses nor makes one in the home folder; nothing is reported."""
    path = tmp_path_factory.mktemp("ray") / "token"
    path.write_text(secrets.token_hex(32))
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_USAGE_STATS_ENABLED": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(token: None) -> Iterator[Any]:
    """Three nodes with a CPU each."""
    pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "memory": 4 * GIB}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": _QUICK})
    for _ in range(2):
        made.add_node(wait=False, **node)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[RayEngine]:
    """The engines that searches of this test were given."""
    made: list[RayEngine] = []

    def choose(*given: Any, **more: Any) -> Any:
        made.append(choose_engine(*given, **more))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(api_search, "choose_engine", choose)
    return made


def on(cluster: Any, folder: Path, **changes: Any) -> Any:
    return small_search(folder, engine="ray", address=cluster.address, **changes)


def once_heard(number: int, act: Callable[[int], None]) -> Callable[..., None]:
    """A watcher that acts once for every attempt of this first-round trial that has been heard of."""
    met: set[int] = set()

    def watch(state: SearchState, progress: dict[tuple[int, int], Progress], *rest: Any) -> None:
        attempt = state.rounds[0].running[number]["attempt"] if (1, number) in progress else None
        if attempt is not None and attempt not in met:
            met.add(attempt)
            del progress[1, number]  # the next attempt begins unheard
            act(attempt)

    return watch


def running(engine: RayEngine, number: int) -> Any:
    return next(w for w in engine._workers if w.trial is not None and w.trial.number == number)


@pytest.mark.slow
class TestOnThreeNodes:
    """In this order: the last two tests kill nodes."""

    def test_trials_whose_worker_is_killed_or_stopped_are_tried_again(
        self, tmp_path: Path, cluster: Any, sequential: Any, engines: list[RayEngine]
    ) -> None:
        """Configuration 0 loses its worker; then Ctrl-C is pressed twice; then the search goes on."""

        def act(attempt: int) -> None:
            if attempt == 1:
                os.kill(running(engines[-1], 0).pid, signal.SIGKILL)
            else:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        state = on(cluster, tmp_path / "run", **LONG).run(callbacks=[OnChange(once_heard(0, act))]).state
        [killed] = state.rounds[0].attempts[0]
        assert killed.status == "killed" and "ended unexpectedly: The actor" in killed.message
        assert state.stopped == "interrupted"
        assert list(tmp_path.glob("run/round-1/cfg-0000/checkpoint/state.json"))
        on(cluster, tmp_path / "run", **LONG).run()
        assert essence(tmp_path / "run") == essence(sequential(**LONG))
        ended = [e["result"] for e in events_of(tmp_path / "run") if e["event"] == "trial_ended"]
        assert all(result["device"].endswith("/cpu") for result in ended if result["status"] == "ok")

    def test_a_driver_that_is_killed_goes_on(self, tmp_path: Path, cluster: Any, sequential: Any) -> None:
        lives: list[Life] = [("before", "trial_ended", 3), None]
        assert storm(tmp_path / "run", lives, engine="ray", address=cluster.address) == [-9, 0]
        assert essence(tmp_path / "run") == essence(sequential())

    def test_nodes_that_cannot_see_the_run_folder_are_named(
        self, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_engine, "_TRIES", 1)
        engine = RayEngine(tmp_path / "nowhere", address=cluster.address, device="cpu")
        sentence = (
            rf"No worker could start on any node .* On {socket.gethostname()}: .* is not the run folder .* at the same"
        )
        try:
            with pytest.raises(GrashError, match=sentence):
                until(lambda: engine.start(Trial(1, 0, 1, {}, ())) is not None)
        finally:
            engine.close()

    def test_a_node_that_is_left_out_gets_no_worker(self, cluster: Any, sequential: Any) -> None:
        engine = RayEngine(sequential(), address=cluster.address, device="cpu")
        try:
            for node in alive_nodes(engine._ray)[:2]:
                engine._failed_starts._by_node[node.id] = (3, 0.0, "It was said to be.")
            [able] = engine._usable_nodes()
            for _ in range(2):
                engine._request_worker(Resources(1, GIB), Trial(1, 0, 1, {}, ()))
            until(lambda: engine._collect_started() is None and any(w.starting is None for w in engine._workers))
            [worker] = [w for w in engine._workers if w.starting is None]  # the other waits, though two nodes are free
            [node] = [n for n in cluster.list_all_nodes() if worker.pid in children_of(raylet_of(n))]
            assert node.node_id == able.id
        finally:
            engine.close()

    def test_ranks_that_ray_starts_as_the_how_to_says_train_one_model(self, tmp_path: Path, cluster: Any) -> None:
        page = (Path(__file__).parents[2] / "docs" / "how-to" / "a-cluster.md").read_text(encoding="utf-8")
        [script] = [block for block in page.split("```text\n") if block.startswith("import os, socket")]
        (tmp_path / "ranks.py").write_text(script.partition("```")[0], encoding="utf-8")
        shifts().save(tmp_path / "graph.grash")
        settings = {
            "dim": 8,
            "batch_size": 96,
            "negatives_head": 20,
            "negatives_tail": 20,
            "epochs": 4,
            "valid_every": 4,
        }
        (tmp_path / "best.yaml").write_text(json.dumps(settings), encoding="utf-8")
        words = ["ranks.py", "2", "train", "graph.grash", "--config", "best.yaml", "-o", "model", "--device", "cpu"]
        given = [str(tmp_path / word) if (tmp_path / word).exists() or word == "model" else word for word in words]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_ADDRESS": cluster.address}
        done = subprocess.run([sys.executable, *given], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 ranks, 75 entities each" in done.stdout + done.stderr
        found = load_model(tmp_path / "model").evaluation["both"]["mrr"]
        alone = run_training(shifts(), make_config(settings), device="cpu")
        assert found == pytest.approx(evaluate(alone.model, shifts()).both.mrr, abs=0.005)

    def test_a_node_that_is_killed_in_a_round_changes_nothing(
        self, tmp_path: Path, cluster: Any, sequential: Any, engines: list[RayEngine]
    ) -> None:
        killed: list[Any] = []

        def kill_node(state: SearchState, progress: dict[tuple[int, int], Progress], *rest: Any) -> None:
            """Kills the first node beside the head whose trial has been heard of."""
            busy = [w for w in engines[-1]._workers if w.trial is not None]
            heard = {w.pid for w in busy if (1, w.trial.number) in progress}
            nodes = [n for n in cluster.worker_nodes if heard & set(children_of(raylet_of(n)))]
            if nodes and not killed:
                killed.extend(nodes[:1])
                cluster.remove_node(nodes[0], allow_graceful=False)

        # survivors go on from states on disk; trials last as long as it takes to notice that the node is gone
        changes = {**LONG, "n_trials": 8, "eta": 2, "variant": "epoch", "max_epochs": 400}
        past = on(cluster, tmp_path / "run", **changes).run(callbacks=[OnChange(kill_node)]).state.rounds
        statuses = Counter(r.status for tries in past[0].attempts.values() for r in tries)
        assert statuses["ok"] == 8 and statuses["killed"] >= 1
        assert essence(tmp_path / "run") == essence(sequential(**changes))

    def test_after_the_head_has_died_the_search_goes_on_with_another_cluster(
        self, tmp_path: Path, cluster: Any, sequential: Any
    ) -> None:
        folder = tmp_path / "run"
        code = f"from pathlib import Path; from engines.searches import small_search as s; s(Path({str(folder)!r}), "
        code += f"engine='ray', address={cluster.address!r}, **{LONG!r}).run()"
        path = os.pathsep.join(p for p in sys.path if p)
        driver = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
        try:
            ledger = folder / "ledger.jsonl"
            until(lambda: ledger.is_file() and any(e["event"] == "trial_started" for e in events_of(folder)))
            cluster.remove_node(cluster.head_node, allow_graceful=False)
            assert driver.wait(60) != 0
        finally:
            driver.kill()
            driver.wait()
        assert not state_of(folder).finished
        small_search(folder, engine="ray", **LONG).run()  # a cluster of its own
        assert essence(folder) == essence(sequential(**LONG))


def raylet_of(node: Any) -> int:
    [raylet] = node.all_processes["raylet"]
    return int(raylet.process.pid)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within a minute")


def test_a_missing_ray_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"engine='ray' needs ray, .* pip install 'grash-kge\[ray\]'"):
        small_search(tmp_path / "run", engine="ray").run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"device": "cuda:1"}, "Ray chooses the GPUs"),
        ({"workers": 0}, "workers=0: give 1 or more"),
        ({"address": "ray://head:10001"}, "start it on a node of the cluster"),
        ({"name": "processes", "address": "head:6379"}, "give engine='ray', not 'processes'"),
    ],
)
def test_what_a_cluster_cannot_be_given_is_named(given: dict[str, Any], sentence: str) -> None:
    asked: dict[str, Any] = {"name": "ray", "device": "cpu", "workers": None, "threads": 1, **given}
    with pytest.raises(ConfigError, match=sentence):
        check_engine(**asked)


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    with pytest.raises(GrashError, match="No Ray cluster could be used at 127.0.0.1:1"):
        RayEngine(tmp_path, address="127.0.0.1:1", device="cpu")


def test_other_versions_on_a_node_are_named() -> None:
    said = {"node": "north", "pid": 7, "gpu_bytes": None, "versions": {**versions(), "torch": "1.0"}}
    with pytest.raises(GrashError, match="torch is 1.0 on north and .* here"):
        check_versions(said)


def test_a_worker_ends_when_another_driver_holds_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(ray_engine.os, "_exit", codes.append)
    worker = RayWorker(str(tmp_path), "cpu", None, "process 1 on north\n")
    trial, progress = Trial(1, 0, 1, {}, ()), Progress(5, 10, 0.5, 0.1, 1.0, 1.0, 1.0, None)
    worker._report(trial, progress)  # the lock cannot be read: nothing is known
    assert codes == [] and json.loads(worker.progress()) == {"trial": [1, 0], "progress": vars(progress)}
    for holder, expected in (("process 1 on north\n", []), ("process 2 on south\n", [0])):
        (tmp_path / ".lock").write_text(holder)
        worker._checked = 0.0
        worker._report(trial, progress)
        assert codes == expected
    worker.stop()
    with pytest.raises(KeyboardInterrupt):
        worker._report(trial, progress)
