"""Run folders without training: the search decides (`advance`), made-up scores answer, the ledger is a real one.

A configuration's quality follows from its values, a round adds its bias and noise, so that ranks flow plausibly.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from grash.search.halving import RunTrials, advance
from grash.search.ledger import SCHEMA, VERSION, Ledger, SearchState, read_ledger
from grash.search.schedule import Shape, round_sizes
from grash.search.settings import SearchSettings, make_settings
from grash.search.trial import Configuration, Round, TrialResult
from grash.training.config import make_config

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)
SPACE = {
    "lr": {"type": "float", "low": 0.003, "high": 1.0, "log": True},
    "penalty": {"type": "categorical", "choices": ["none", "l2", "l3"]},
    "penalty_entity": {
        "type": "float", "low": 1e-6, "high": 1.0, "log": True, "off": 0.25, "when": {"penalty": ["l2", "l3"]},
    },
    "dropout_entity": {"type": "float", "low": 0.0, "high": 0.5, "off": 0.5},
    "negatives_tail": {"type": "int", "low": 10, "high": 1000, "log": True},
    "reciprocal": {"type": "categorical", "choices": [False, True]},
}  # fmt: skip
FULL_RUN_SECONDS = 5400.0


class MadeUpGraphs:
    """Sizes of the subgraphs of a graph like YAGO3-10, by a power law."""

    n_entities, n_relations, n_train = 123_143, 37, 1_079_040
    valid_pairs_isolated = False

    def shape(self, fractions: tuple[float, ...], isolated: bool = False) -> Shape:
        part = fractions[-1]
        if part >= 1:
            return Shape(self.n_entities, self.n_relations, self.n_train, 4_978, whole=True)
        n_train = int(part * self.n_train)
        return Shape(int(self.n_entities * part**1.1), 30 + int(7 * part), n_train, min(5000, n_train // 10), k=9)

    def smallest_fraction(self, n_entities: int, n_valid: int) -> float:
        return max((n_entities / self.n_entities) ** (1 / 1.1), 10 * n_valid / self.n_train)


class MadeUpRun:
    """Writes a run folder's ledger, event by event."""

    def __init__(
        self, folder: Path, settings: SearchSettings, *, name: str, faults: dict[tuple[int, int], list[str]],
        validations: dict[tuple[int, int], tuple[float, float]],
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.settings, self.graphs, self.faults, self.validations = settings, MadeUpGraphs(), faults, validations
        self.ledger, self.state, self.elapsed = Ledger(folder), SearchState.replay([]), 0.0
        sizes = round_sizes(settings.n_trials, settings.eta)
        graphs = self.graphs
        dataset = {
            "name": name, "fingerprint": f"{zlib.crc32(name.encode()):016x}", "n_entities": graphs.n_entities,
            "n_relations": graphs.n_relations, "n_train": graphs.n_train, "n_valid": 4978, "n_test": 4982,
            "source": f"{name}.tsv",
        }  # fmt: skip
        self.write(
            "search_started", schema=SCHEMA, version=VERSION, settings=settings.model_dump(mode="json"),
            dataset=dataset, sizes=sizes, budget=settings.budget, notes=[],
            versions={"grash": "0.1.0", "torch": "2.13.0"},
        )  # fmt: skip

    def write(self, event: str, **fields: Any) -> None:
        at = (BEGIN + timedelta(seconds=self.elapsed)).isoformat(timespec="seconds")
        self.state.apply(self.ledger.write(event, **fields, at=at, elapsed=round(self.elapsed, 3)))

    def go(self, *, n_ended: int | None = None) -> None:
        """Runs to the end, or until that many trials have ended (others are then running)."""
        left = math.inf if n_ended is None else n_ended
        while True:
            self._propose()
            action = advance(self.state, self.settings, self.graphs, self.write)
            if action is None:
                return
            if action.round:
                left = self._run(action, left)
                if left <= 0:
                    return
            else:
                [number] = action.numbers
                self.write("trial_started", round=0, number=number, attempt=1, device="cuda:0")
                if left <= 0:
                    return
                self._end(self._final(number))

    def extend(self, n_trials: int, budget: float) -> None:
        self.settings = self.settings.model_copy(update={"n_trials": n_trials, "budget": budget})
        sizes = round_sizes(n_trials, self.settings.eta)[: len(self.state.rounds)]
        self.write("search_extended", sizes=sizes, budget=budget, settings={"n_trials": n_trials, "budget": budget})

    def _propose(self) -> None:
        known, wanted = len(self.state.configurations), self.state.sizes[0] if self.state.sizes else 1
        if known < wanted:
            made = [_configuration(self.settings, i).to_json() for i in range(known, wanted)]
            self.write("configurations_proposed", configurations=made)

    def _run(self, action: RunTrials, left: float) -> float:
        """Two devices: while one trial ends, the next one runs."""
        numbers, slots = list(action.numbers), 2
        for i, number in enumerate(numbers):
            for other in numbers[i : i + slots]:
                if other not in self.state.rounds[action.round - 1].running:
                    self.write(
                        "trial_started", round=action.round, number=other, attempt=1, device=f"cuda:{other % slots}"
                    )
            if left <= 0:
                return left
            for status in self.faults.get((action.round, number), ["ok"]):
                plan = self.state.rounds[action.round - 1].plan
                result = _result(self.state.configurations[number], plan, status)
                if status == "ok" and (action.round, number) in self.validations:
                    result = _validated(result, self.validations[action.round, number])
                self._end(result, share=1 / slots)
            left -= 1
        return left

    def _end(self, result: TrialResult, *, share: float = 1.0) -> None:
        self.elapsed += result.seconds * share
        self.write("trial_ended", result=result.to_json())

    def _final(self, number: int) -> TrialResult:
        made = self.state.configurations[number]
        mrr = 0.56 * quality(made)
        history = _history(mrr, 20, self.settings.max_epochs)
        metrics = {
            "n": 9964,
            "mrr": mrr - 0.004,
            "mr": 812.0,
            "amri": 0.98,
            "hits@1": 0.45,
            "hits@3": 0.59,
            "hits@10": 0.69,
        }
        relations = {f"relation {i}": {**metrics, "n": 900 // i, "mrr": mrr / i} for i in range(1, 6)}
        whole = {"both": metrics, "baseline": {**metrics, "mrr": 0.05}, "per_relation": relations}
        whole["baseline_per_relation"] = {name: 0.04 for name in relations}
        (self.ledger.path.parent / "model").mkdir(exist_ok=True)
        (self.ledger.path.parent / "model" / "model.json").write_text(json.dumps({"evaluation": whole}))
        evaluation = {
            "split": "test", "both": metrics, "head": metrics, "tail": metrics, "n_triples": 4982,
            "mrr_interval": [mrr - 0.014, mrr + 0.006],
        }  # fmt: skip
        return TrialResult(
            0, number, 1, "ok", mrr=mrr, interval=(mrr - 0.01, mrr + 0.01), history=history, cost=1.0,
            seconds=FULL_RUN_SECONDS, peak_bytes=3 << 30, device="cuda:0", evaluation=evaluation,
        )  # fmt: skip


def write_run(
    folder: Path, *, n_ended: int | None = None, name: str = "yago3-10",
    faults: dict[tuple[int, int], list[str]] | None = None,
    validations: dict[tuple[int, int], tuple[float, float]] | None = None, **settings: Any,
) -> MadeUpRun:  # fmt: skip
    """A run folder: finished, or stopped short after `n_ended` trials. faults: statuses of a trial's attempts;
    validations: the two MRRs of a trial, where they are not made up."""
    chosen = make_settings({"space": SPACE, "proposals": "random", **settings})
    run = MadeUpRun(folder, chosen, name=name, faults=faults or {}, validations=validations or {})
    run.go(n_ended=n_ended)
    return run


def state_of(folder: Path) -> SearchState:
    return SearchState.replay(read_ledger(folder / "ledger.jsonl"))


# of four trials, configuration 0 has the highest MRR, and configuration 2 goes first since it was still rising
RISING = {(1, 0): (0.0168, 0.0168), (1, 1): (0.004, 0.005), (1, 2): (0.0102, 0.0162), (1, 3): (0.006, 0.007)}
MISHAPS = {
    (1, 5): ["diverged"],
    (1, 11): ["diverged"],
    (1, 20): ["killed"] * 3,
    (1, 31): ["out_of_memory", "ok"],
    (1, 40): ["timeout"],
}


def _configuration(settings: SearchSettings, number: int) -> Configuration:
    draw = random.Random(f"{settings.seed} {number}")
    penalty = draw.choice(["none", "l2", "l3"])
    weight = 0.0 if draw.random() < 0.25 else 10 ** draw.uniform(-6, 0)
    values = {
        "model": settings.models[number % len(settings.models)],
        "dim": settings.dim,
        "lr": 10 ** draw.uniform(math.log10(0.003), 0),
        "penalty": penalty,
        "penalty_entity": weight if penalty != "none" else 0.0,
        "dropout_entity": 0.0 if draw.random() < 0.5 else draw.uniform(0, 0.5),
        "negatives_tail": round(10 ** draw.uniform(1, 3)),
        "reciprocal": draw.random() < 0.5,
        "epochs": settings.max_epochs,
        "valid_every": settings.max_epochs / 20,
        "patience": 5,
        "variation": number,
    }
    origin = ("portfolio:grash-yago3-10", "prior", "uniform", "prior")[number % 4]
    return Configuration(number, make_config(values).model_dump(), origin)


def quality(made: Configuration) -> float:
    """0 to 1: good where lr is about 0.15, negatives are many, and the penalty is light."""
    values, draw = made.values, random.Random(made.number)
    rate = math.exp(-((math.log10(values["lr"] / 0.15) / 0.7) ** 2))
    negatives = 0.6 + 0.4 * math.log(values["negatives_tail"]) / math.log(1000)
    penalty = 1 - 0.5 * values["penalty_entity"] ** 0.3
    reciprocal = 1.05 if values["reciprocal"] else 1.0
    model = {"transe": 0.7, "rotate": 0.95}.get(values["model"], 1.0)
    return max(0.02, min(1.0, rate * negatives * penalty * reciprocal * model * draw.uniform(0.92, 1.04)))


def _result(made: Configuration, plan: Round, status: str) -> TrialResult:
    draw = random.Random(f"{made.number} {plan.number}")
    epochs = plan.positives / plan.n_train
    seconds = plan.cost * FULL_RUN_SECONDS * draw.uniform(0.7, 1.4) * (0.7 + made.values["negatives_tail"] / 1500)
    common = {
        "round": plan.number, "number": made.number, "attempt": 1, "status": status,
        "device": f"cuda:{made.number % 2}", "positives": plan.positives,
        "cost": plan.cost, "seconds": seconds, "peak_bytes": 200 << 20,
    }  # fmt: skip
    if status != "ok":
        common |= {"cost": plan.cost / 3 if status == "diverged" else 0.0, "seconds": seconds / 3}
        return TrialResult(**common, message=MESSAGES[status], traceback="")
    noise = 0.25 / plan.number**2
    mrr = min(0.95, (0.3 + 0.08 * plan.number) * quality(made) * draw.uniform(1 - noise, 1 + noise))
    wide = 0.02 / plan.number
    return TrialResult(**common, mrr=mrr, interval=(mrr - wide, mrr + wide), history=_history(mrr, 2, epochs))


def _validated(result: TrialResult, mrrs: tuple[float, float]) -> TrialResult:
    best = max(mrrs)
    history = [{**seen, "mrr": mrr} for seen, mrr in zip(result.history, mrrs)]
    return replace(result, mrr=best, interval=(best - 0.002, best + 0.002), history=history)


def _history(mrr: float, count: int, epochs: float) -> list[dict[str, Any]]:
    shares = [(i + 1) / count for i in range(count)]
    return [
        {
            "step": round(1000 * s),
            "epoch": epochs * s,
            "loss": 8 - 4 * s,
            "mrr": mrr * (1 - 0.6 * (1 - s) ** 2),
            "lr": 0.1,
        }
        for s in shares
    ]


MESSAGES = {
    "diverged": "Training diverged at step 812: the loss is nan (it began at 9.2). Try a lower learning rate.",
    "killed": "The worker was killed by signal 9.",
    "out_of_memory": "CUDA out of memory: 12.0 GiB were asked for.",
    "timeout": "The trial ran longer than --trial-timeout 600.",
    "error": "ValueError: something <script>alert(1)</script> went wrong",
}
