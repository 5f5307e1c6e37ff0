"""Ranks of a distributed training as processes: a program that forks them, launch after launch, so torch is imported
once.

`launches(plan)` starts it; of every launch it says the exit codes of the ranks, how long they took and what they said.
A launch is a dict: size (ranks), task ("losses", "train" or "alike"), and what the task takes:
    losses   settings (a list), steps, out        totals of the losses of each, as a JSON file
    train    settings, out, checkpoint, and what happens: {"rank", "step", "signal"}, or None; save_every (seconds)
    alike    nothing: rank 1 has other settings than rank 0
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_LIMIT = 600.0  # seconds; a plan that takes longer hangs


def launches(folder: Path, plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each launch: codes, seconds, and said (per rank)."""
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "engines.ranks", json.dumps(plan)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=_LIMIT,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    import torch

    import grash.engines.distributed  # noqa: F401, once for all children

    torch.set_num_threads(1)
    print(json.dumps([_launch(launch, number) for number, launch in enumerate(json.loads(sys.argv[1]))]))


def _launch(launch: dict[str, Any], number: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = launch["size"]
    files = [Path(f"said-{number}-{rank}.txt") for rank in range(size)]
    sys.stdout.flush()
    began, children = time.monotonic(), {}
    for rank in range(size):
        child = os.fork()
        if not child:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            os.dup2(os.open(files[rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os._exit(_live(launch))
        children[child] = rank
    codes = [0] * size
    for _ in range(size):
        pid, status = os.wait()
        codes[children[pid]] = os.waitstatus_to_exitcode(status)
    return {"codes": codes, "seconds": time.monotonic() - began, "said": [f.read_text() for f in files]}


def _live(launch: dict[str, Any]) -> int:
    import traceback

    from grash.errors import GrashError

    try:
        {"losses": _losses, "train": _train, "alike": _alike}[launch["task"]](launch)
    except GrashError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _losses(launch: dict[str, Any]) -> None:
    import torch

    from engines.planted import circle
    from grash.engines.distributed import join_group
    from grash.engines.trainer import TrainingData
    from grash.training.config import make_config
    from grash.training.distributed.checkpoint import fresh_shard
    from grash.training.distributed.communication import Shard
    from grash.training.distributed.loop import distributed_step
    from grash.training.loop import Training

    dataset, found = circle(), []
    with join_group("cpu") as (group, device), torch.no_grad():
        shard, data = Shard(dataset.n_entities, group), TrainingData(dataset, device)
        for settings in launch["settings"]:
            config = make_config(settings)
            state = fresh_shard(config, dataset.n_relations, shard, device)
            training = Training(config).started(state, data.batches(config))
            losses = [distributed_step(training, shard) for _ in range(launch["steps"])]
            found.append(group.all_reduce(torch.stack(losses)).tolist())
        if group.rank == 0:
            Path(launch["out"]).write_text(json.dumps(found))


def _train(launch: dict[str, Any]) -> None:
    from engines.planted import circle
    from grash.engines.distributed import join_group, run_distributed_training
    from grash.training.config import make_config
    from grash.training.distributed import loop as sharded_loop

    happens, plain_step, plain_rename = launch.get("happens"), sharded_loop.distributed_step, Path.rename
    mine = bool(happens) and os.environ["RANK"] in happens["ranks"]
    begun: list[int] = []

    def step(training: Any, *rest: Any) -> Any:
        if not begun:
            begun.append(training.state.step)
            print(f"begins at step {begun[0]}", file=sys.stderr, flush=True)
        if mine and training.state.step == happens.get("step"):
            os.kill(os.getpid(), getattr(signal, happens["signal"]))
        return plain_step(training, *rest)

    def rename(self: Path, target: Path) -> Path:
        if mine and happens.get("renames") and self.suffix == ".part" and self.with_suffix(".old").exists():
            os.kill(os.getpid(), getattr(signal, happens["signal"]))
        return plain_rename(self, target)

    sharded_loop.distributed_step = step  # type: ignore[assignment]
    Path.rename = rename  # type: ignore[method-assign]
    with join_group("cpu") as (group, device):
        run_distributed_training(
            circle(),
            make_config(launch["settings"]),
            group,
            device,
            out=Path(launch["out"]),
            checkpoint=Path(launch["checkpoint"]),
            save_every_seconds=launch.get("save_every", 120.0),
        )


def _alike(launch: dict[str, Any]) -> None:
    settings = {"epochs": 2, "dim": 4 * (1 + int(os.environ["RANK"]))}
    _train({**launch, "settings": settings, "out": "other", "checkpoint": "other.checkpoint"})


if __name__ == "__main__":
    main()
