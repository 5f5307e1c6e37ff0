r"""Run default searches, then train the other finalists in full: how much of the best one's test MRR has the pick?

    python benchmarks/check_pick.py GRAPH --seeds 0 1 2 [--models complex,rotate] [--finalists] \
        [--last-round] [--ledgers FOLDER] [--set NAME=VALUE …]

NAME=VALUE are settings of the search. A line of CSV per search: graph, models, seed, the other settings, test MRR of
the final model, its best validation, its epochs, seconds with final training, where the pick came from, and with
`--finalists` the test MRR of every other finalist (or, without a round of finalists, of the best four of the last
round) and the share of the best that the pick has. `--last-round` trains all trials of the last round, also those that
got no further. `--ledgers` keeps how each of these models is validated, too: its
curve, its MRR and weighted MRR on valid, and its MRR on valid with the answers of test left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

import grash
from grash.data.dataset import SPLITS
from grash.data.known_answers import KnownAnswers
from grash.evaluation.metrics import score
from grash.evaluation.ranking import Ranker
from grash.search.ledger import SearchState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", default="complex")
    parser.add_argument("--finalists", action="store_true", help="train the other finalists in full")
    parser.add_argument("--last-round", action="store_true", help="train all trials of the last round in full")
    parser.add_argument("--out", type=Path, help="append to this file instead of printing")
    parser.add_argument(
        "--ledgers", type=Path, help="keep the ledger of every search in this folder, and with --finalists their curves"
    )
    args = parser.parse_args()
    data = grash.load_dataset(args.graph)
    given = {name: yaml.safe_load(value) for name, _, value in (s.partition("=") for s in args.set)}
    for seed in args.seeds:
        row = [data.name, args.models, seed, " ".join(args.set)]
        kept = args.ledgers / f"{data.name}-{args.models.replace(',', '+')}-{seed}.jsonl" if args.ledgers else None
        others = finalists_of if args.finalists else last_round_of if args.last_round else None
        row += search(data, {**given, "model": args.models, "seed": seed}, others=others, ledger=kept)
        with args.out.open("a") if args.out else nullcontext(sys.stdout) as file:
            csv.writer(file).writerow(row)


def search(
    data: Any,
    settings: dict[str, Any],
    *,
    others: Callable[[SearchState], list[int]] | None,
    ledger: Path | None = None,
) -> list[Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = grash.Search(data, out=Path(folder) / "run", **settings).run(progress=False)
        state, own = found.state, found.model
        if ledger is not None:
            shutil.copy(Path(folder) / "run" / "ledger.jsonl", ledger)
    final, winner = state.final, state.winner
    assert final is not None and final.evaluation is not None and winner is not None
    tested, pick = final.evaluation["both"]["mrr"], state.configurations[winner]
    row = [f"{tested:.4f}", f"{final.mrr:.4f}", f"{final.history[-1]['epoch']:.0f}", f"{time.monotonic() - began:.1f}"]
    row.append(f"{pick.values['model']} {pick.origin}")
    if others is not None:
        models = {n: train_in_full(data, state.configurations[n].values) for n in others(state) if n != winner}
        found_mrrs = {n: float(model.evaluation["both"]["mrr"]) for n, model in models.items()}
        if ledger is not None:
            looked = {n: validations(data, model) for n, model in {winner: own, **models}.items()}
            ledger.with_suffix(".validations.json").write_text(json.dumps(looked))
        row += [
            " ".join(f"{n}:{mrr:.4f}" for n, mrr in found_mrrs.items()),
            f"{tested / max(tested, *found_mrrs.values(), 0):.4f}",
        ]
    return row


def validations(data: Any, model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"curve": [[v["epoch"], v["mrr"]] for v in model.history]}
    for name, metric, splits in (
        ("mrr", "mrr", SPLITS[:2]),
        ("weighted-mrr", "weighted-mrr", SPLITS[:2]),
        ("mrr, test's answers left out", "mrr", SPLITS),
    ):
        known = KnownAnswers.of(*(data.split(s) for s in splits), n_relations=data.n_relations, asked=data.valid)
        ranker = Ranker(data.valid, known, data.n_entities, model.kge.entity.device)
        found[name] = round(score(ranker.rank(model.kge), metric), 4)
    return found


def last_round_of(state: SearchState) -> list[int]:
    last = next((r for r in state.rounds if r.plan.before_finalists), state.rounds[-1])
    return last.best(len(last.results))


def finalists_of(state: SearchState) -> list[int]:
    last = next((r for r in state.rounds if r.plan.before_finalists), None)
    return (last and last.survivors) or state.rounds[-1].best(4)


def train_in_full(data: Any, values: dict[str, Any]) -> Any:
    return grash.train(data, values, progress=False, calibrate=False)


if __name__ == "__main__":
    main()
