"""A Ray cluster that is made up: nodes on which workers begin or not, cards that have 10 GiB, trials that never end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from grash.engines.ray import versions
from grash.search.trial import Trial
from grash.training.loop import Progress

GIB = 1 << 30


@dataclass
class FakeNode:
    """A node whose workers begin at once, or not, for a reason."""

    name: str
    gib: int = 64
    cpus: int = 8
    gpus: int = 0
    fault: str | Exception = ""
    alive: bool = True

    def row(self) -> dict[str, Any]:
        """As `ray.nodes` has it."""
        offers = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.gib * GIB)}
        return {
            "Alive": self.alive, "NodeID": f"id-{self.name}", "NodeManagerHostname": self.name,
            "NodeManagerAddress": f"10.0.0.{len(self.name)}", "Resources": {k: v for k, v in offers.items() if v},
        }  # fmt: skip

    def begin(self) -> Any:
        if isinstance(self.fault, Exception):
            return self.fault
        if self.fault:
            return json.dumps({"error": self.fault, "id": f"id-{self.name}"})
        card = 10 * GIB if self.gpus else None
        said = {"node": self.name, "id": f"id-{self.name}", "pid": 7, "gpu_bytes": card, "versions": versions()}
        return json.dumps(said)


@dataclass(eq=False)
class Answer:
    content: Any = None
    ready: bool = True


@dataclass
class FakeRay:
    """Every worker goes to the first node that has what it asks for and is named, if some are; cards have 10 GiB. A
    worker's trial runs for ever."""

    there: list[FakeNode] = field(default_factory=lambda: [FakeNode("north", gpus=2)])
    asked: list[tuple[float, int]] = field(default_factory=list)  # (GPUs, GiB) of every worker
    named: list[str] = field(default_factory=list)  # label selectors
    killed: list[Any] = field(default_factory=list)
    probes: int = 0
    beat: tuple[int, Progress] | None = None  # (round, progress) that a worker reports
    exceptions: ClassVar[Any] = SimpleNamespace(RayError=RuntimeError, RayTaskError=LookupError)

    def nodes(self) -> list[dict[str, Any]]:
        return [node.row() for node in self.there]

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        if "concurrency_groups" in options:
            return lambda worker: SimpleNamespace(options=self.sized)
        return lambda function: SimpleNamespace(remote=lambda gpu: self.probe(options["num_cpus"], options["num_gpus"]))

    def probe(self, cpus: int, gpus: int) -> Answer:
        self.probes += 1
        node = self.place(cpus, gpus, 0, "")
        return Answer(ready=False) if node is None else Answer(node.fault or 10 * GIB * (gpus > 0))

    def sized(self, *, num_cpus: int, num_gpus: float, memory: int, label_selector: Any = None) -> Any:
        self.asked.append((num_gpus, memory // GIB))
        named = "" if label_selector is None else label_selector["ray.io/node-id"]
        self.named.append(named)
        node = self.place(num_cpus, num_gpus, memory, named)
        begun = Answer(ready=False) if node is None else Answer(node.begin())
        methods = {
            "begin": SimpleNamespace(remote=lambda: begun),
            "run": SimpleNamespace(remote=lambda task: Answer(ready=False)),
            "progress": SimpleNamespace(options=lambda **group: SimpleNamespace(remote=self.progress)),
        }
        return SimpleNamespace(remote=lambda *given: SimpleNamespace(**methods))

    def progress(self) -> Answer:
        if self.beat is None:
            return Answer("null")
        return Answer(json.dumps({"trial": [self.beat[0], 0], "progress": asdict(self.beat[1])}))

    def place(self, cpus: int, gpus: float, memory: int, named: str) -> FakeNode | None:
        free = [n for n in self.there if n.alive and n.cpus >= cpus and n.gpus >= gpus and n.gib * GIB >= memory]
        return next((n for n in free if not named or f"id-{n.name}" in named), None)

    def wait(self, refs: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        return [ref for ref in refs if ref.ready], [ref for ref in refs if not ref.ready]

    def get(self, ref: Any) -> Any:
        if isinstance(ref.content, Exception):
            raise ref.content
        return ref.content

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def task_of(n_bytes: float, config: dict[str, Any] | None = None, **more: Any) -> Trial:
    return Trial(1, 0, 1, config or {}, (), n_bytes=int(n_bytes), **more)
