"""Load on `grash serve`: questions per second, latency, start, memory and handles; also a soak of any length.

    python benchmarks/bench_serve.py load --entities 100000 --clients 50 --seconds 30 --threads 1
    python benchmarks/bench_serve.py load --entities 6500000 --triples 21000000 --clients 1 --seconds 30
    python benchmarks/bench_serve.py soak --entities 100000 --seconds 1800

The model has random tables and names, so its answers mean nothing, but cost what real ones cost. --calibrated gives it
probabilities, which also mean nothing. The server is a separate process. Its clients are those of wrk if it is
installed (apt-get install wrk), else sockets in this process; both keep their connections. All share the same cores, so
the CPU time of the clients is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import torch

from bench_name_search import invented_names
from grash.api.model import Model
from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.evaluation.calibration import Calibration, Reliability, Weights
from grash.models import model_class
from grash.training.config import make_config

N_RELATIONS = 200
DIM = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["load", "soak"])
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--batch", type=int, default=0, help="questions per request, sent to POST /api/ask; 0: GET")
    parser.add_argument("--all-entities", action="store_true", help="ask among all entities, not like-known ones")
    parser.add_argument("--threads", type=int, help="of the server, for ranking")
    parser.add_argument("--calibrated", action="store_true", help="make a model with probabilities")
    parser.add_argument("--model", type=Path, help="model folder to use, or to make if it is not there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.model or Path(temporary) / "model"
        if not folder.is_dir():
            make_model(folder, given.entities, given.triples, given.calibrated)
        with served(folder, given.threads) as (port, report):
            requests = make_requests(folder, given.batch, not given.all_entities)
            if given.what == "load":
                asyncio.run(load(port, requests, given.clients, min(3.0, given.seconds)))  # compiles and warms up
                before, mine = gauges(port), cpu_of_clients()
                run = load_with_wrk if shutil.which("wrk") else load_from_here
                report |= run(port, requests, given.clients, given.seconds, max(1, given.batch))
                after = gauges(port)
                n = after["questions"] - before["questions"]
                for who, used in (("server", after["cpu"] - before["cpu"]), ("clients", cpu_of_clients() - mine)):
                    report[f"CPU ms of the {who} per question"] = round(1000 * used / max(1, n), 3)
            else:
                mixed = requests + other_requests(folder, len(requests) // 20)
                np.random.default_rng(0).shuffle(mixed)
                report |= asyncio.run(soak(port, mixed, given.clients, given.seconds))
            report |= gauges(port)
    print(json.dumps(vars(given) | report, indent=2, default=str))


def make_model(folder: Path, n_entities: int, n_triples: int, calibrated: bool = False) -> None:
    generator = np.random.default_rng(0)
    ends = (n_entities * generator.random((n_triples, 2)) ** 2).astype(np.int32)  # some entities have many triples
    relations = (N_RELATIONS * generator.random(n_triples) ** 2).astype(np.int32)
    train = np.stack([ends[:, 0], relations, ends[:, 1]], 1)
    names, offsets = invented_names(n_entities, generator).arrays
    unique = [
        f"{names[offsets[i] : offsets[i + 1]].tobytes().decode()}{i}" if i % 2 else f"Entity {i}"
        for i in range(n_entities)
    ]
    dataset = Dataset(
        train, train[:1].copy(), train[1:2].copy(), n_entities, N_RELATIONS, name="random",
        entities=Vocabulary.from_names(unique),
        relations=Vocabulary.from_names([f"relation {i}" for i in range(N_RELATIONS)], kind="relation"),
    )  # fmt: skip
    tables = [torch.randn(n, DIM, generator=torch.Generator().manual_seed(n)) for n in (n_entities, N_RELATIONS)]
    model = Model(model_class("complex")(*tables), dataset, make_config({"model": "complex", "dim": DIM}))
    if calibrated:
        seen = Reliability.of(np.array([0.4, 0.6]), np.array([False, True]))
        model.calibration = Calibration(
            split="valid", n_questions=100, temperature=8.0, score_mean=0.0, score_std=8.0,
            weights=Weights(0.1, 0.1, 0.1), of_relation={}, first=seen, answers=seen, thresholds=None,
        )  # fmt: skip
    model.save(folder)


@contextmanager
def served(folder: Path, threads: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the port of a server process, and how long it took to start."""
    began = time.monotonic()
    words = [sys.executable, "-m", "grash", "serve", str(folder), "--port", "0"]
    words += [] if threads is None else ["--threads", str(threads)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().split(":")[2].split("/")[0])
        fetch(port, "/")
        report: dict[str, Any] = {"seconds to the page": round(time.monotonic() - began, 2)}
        health = get_json(port, "/api/model")  # waits until the model is loaded
        report["seconds to the first reply of the model"] = round(time.monotonic() - began, 2)
        report["printed"] = process.stderr.readline().strip()
        while not health.get("verified"):
            time.sleep(0.1)
            health = get_json(port, "/health")
        report["seconds to compare checksums"] = round(time.monotonic() - began, 2)
        yield port, report
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


def make_requests(folder: Path, batch: int, like_known: bool) -> list[bytes]:
    """Return requests as bytes: questions of train for tails and heads."""
    dataset = Dataset.load(folder / "dataset", verify=False)
    assert dataset.entities is not None and dataset.relations is not None
    rows = dataset.train[np.random.default_rng(1).integers(0, len(dataset.train), 5_000)]
    questions = []
    for i, (h, r, t) in enumerate(rows.tolist()):
        end = {"head": dataset.entities.name(h)} if i % 2 else {"tail": dataset.entities.name(t)}
        questions.append({**end, "relation": dataset.relations.name(r)})
    conditions: dict[str, Any] = {"like_known": like_known, "k": 10}
    if not batch:
        texts = [urlencode({**q, **conditions, "like_known": str(like_known).lower()}) for q in questions]
        return [f"GET /api/ask?{text} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for text in texts]
    bodies = [
        json.dumps({"questions": questions[i : i + batch], **conditions}) for i in range(0, len(questions), batch)
    ]
    head = "POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return [f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode() for body in bodies]


def other_requests(folder: Path, n: int) -> list[bytes]:
    """Return n requests of each other kind, and n for names that are not there."""
    dataset = Dataset.load(folder / "dataset", verify=False)
    assert dataset.entities is not None and dataset.relations is not None
    found = []
    for h, r, t in dataset.train[np.random.default_rng(2).integers(0, len(dataset.train), n)].tolist():
        head, relation, tail = dataset.entities.name(h), dataset.relations.name(r), dataset.entities.name(t)
        found += [
            ("/api/search", {"q": head[: 1 + h % 9]}), ("/api/facts", {"entity": head}),
            ("/api/neighbors", {"entity": tail}), ("/api/ask", {"head": head + "x", "relation": relation}),
            ("/api/explain", {"head": head, "relation": relation, "tail": tail}),
        ]  # fmt: skip
    return [f"GET {path}?{urlencode(given)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path, given in found]


@dataclass
class Outcome:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each reply
    statuses: dict[str, int] = field(default_factory=dict)
    wall: float = 0.0


_WRK = """
local requests, i = {}, 0
local file = io.open(os.getenv("GRASH_REQUESTS"), "rb")
for text in file:read("*a"):gmatch("[^%z]+") do requests[#requests + 1] = text end
request = function() i = i % #requests + 1; return requests[i] end
done = function(summary, latency)
  io.stderr:write(string.format("%d %d %d %d %d %d %d", summary.requests, summary.duration, summary.errors.status,
    latency:percentile(50), latency:percentile(95), latency:percentile(99), latency.max))
end
"""


def load_with_wrk(port: int, requests: list[bytes], n_clients: int, seconds: float, batch: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        script, file = Path(temporary) / "ask.lua", Path(temporary) / "requests"
        script.write_text(_WRK, encoding="ascii")
        file.write_bytes(b"\0".join(requests))
        words = ["wrk", "-t1", f"-c{n_clients}", f"-d{round(seconds)}s", "-s", str(script), f"http://127.0.0.1:{port}"]
        ran = subprocess.run(words, env=os.environ | {"GRASH_REQUESTS": str(file)}, capture_output=True, check=True)
    replies, microseconds, errors, *times = map(int, ran.stderr.split())
    names = ("median ms", "p95 ms", "p99 ms", "max ms")
    return {
        "clients of": "wrk", "questions per second": round(1e6 * replies * batch / microseconds, 1),
        "replies": replies, "replies with another status than 200": errors,
        **{name: round(value / 1000, 1) for name, value in zip(names, times)},
    }  # fmt: skip


def load_from_here(port: int, requests: list[bytes], n_clients: int, seconds: float, batch: int) -> dict[str, Any]:
    return {"clients of": "Python"} | summary(asyncio.run(load(port, requests, n_clients, seconds)), batch)


def cpu_of_clients() -> float:
    """Return the CPU seconds of this process and of those that it waited for: wrk, not the server."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


async def load(port: int, requests: list[bytes], n_clients: int, seconds: float) -> Outcome:
    outcome, began = Outcome(), time.monotonic()
    clients = [client(port, requests[i::n_clients] or requests, began + seconds, outcome) for i in range(n_clients)]
    await asyncio.gather(*clients)
    outcome.wall = time.monotonic() - began
    return outcome


async def client(port: int, requests: list[bytes], deadline: float, outcome: Outcome) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    i = 0
    while time.monotonic() < deadline:
        began = time.monotonic()
        writer.write(requests[i % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        outcome.seconds.append(time.monotonic() - began)
        status = head[9:12].decode()
        outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        i += 1
    writer.close()
    await writer.wait_closed()


async def soak(port: int, requests: list[bytes], n_clients: int, seconds: float) -> dict[str, Any]:
    """Load with a sample of memory and handles every thirtieth of the time; the first third is for warming up."""
    samples, slowest, total = [], 0.0, 0
    statuses: dict[str, int] = {}
    for _ in range(30):
        outcome = await load(port, requests, n_clients, seconds / 30)
        total += len(outcome.seconds)
        slowest = max(slowest, max(outcome.seconds, default=0.0))
        for status, n in outcome.statuses.items():
            statuses[status] = statuses.get(status, 0) + n
        samples.append(gauges(port))
    later = samples[10:]
    return {
        "replies": total, "statuses": statuses, "slowest seconds": round(slowest, 3),
        "MiB at a third and at the end": [round(s["memory"] / 2**20, 1) for s in (later[0], later[-1])],
        "most MiB": round(max(s["memory"] for s in samples) / 2**20, 1),
        "handles at a third and at the end": [later[0]["handles"], later[-1]["handles"]],
    }  # fmt: skip


def summary(outcome: Outcome, batch: int) -> dict[str, Any]:
    quantiles = np.quantile(outcome.seconds, [0.5, 0.95, 0.99, 1.0]) * 1000
    names = ("median ms", "p95 ms", "p99 ms", "max ms")
    rate = len(outcome.seconds) * max(1, batch) / outcome.wall
    return {
        "questions per second": round(rate, 1), "statuses": outcome.statuses,
        **{name: round(float(value), 1) for name, value in zip(names, quantiles)},
    }  # fmt: skip


def gauges(port: int) -> dict[str, float]:
    lines = fetch(port, "/metrics").decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    found = {"memory": float(values["process_resident_memory_bytes"]), "handles": float(values["process_open_fds"])}
    found["cpu"], found["questions"] = (
        float(values["process_cpu_seconds_total"]),
        float(values["grash_questions_total"]),
    )
    batches = max(1.0, float(values["grash_batches_total"]))
    return found | {"questions per batch": round(float(values["grash_questions_total"]) / batches, 1)}


def get_json(port: int, path: str) -> dict[str, Any]:
    return json.loads(fetch(port, path))


def fetch(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
        return reply.read()


if __name__ == "__main__":
    main()
