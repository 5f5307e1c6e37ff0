"""grash evaluate: filtered ranking of a split, as a table or JSON."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from grash.cli.options import Device, Json, ModelFolder, Threads, option_of, takes_source_options
from grash.cli.show import as_json, listen, table
from grash.errors import ConfigError

_COLUMNS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")


def add_to(app: typer.Typer) -> None:
    app.command()(takes_source_options(evaluate))


def evaluate(
    model: ModelFolder,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset", help="Another graph, matched by names; the model's own by default.", show_default=False
        ),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="valid or test.")] = "test",
    sample: Annotated[
        int | None, typer.Option("--sample", help="Rank a seeded sample of that many triples, for large graphs.")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option("--candidates", help="Rank among that many drawn entities; other names, as mrr@1000neg."),
    ] = None,
    unseen: Annotated[
        str, typer.Option("--unseen", help="Triples with something that train has not: keep, or drop (counted).")
    ] = "keep",
    per_relation: Annotated[bool, typer.Option("--per-relation", help="Metrics of every relation too.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample and of the interval.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Rank the true answers of a split: MRR, Hits@k and more.

    Every triple asks for its head and for its tail, each ranked among all entities, known answers left out.
    """
    for name, value, choices in (("split", split, ("valid", "test")), ("unseen", unseen, ("keep", "drop"))):
        if value not in choices:
            raise ConfigError(f"{name}={value!r} is unknown: give {' or '.join(choices)}.")
    if candidates is not None and candidates < 1:
        raise ConfigError(f"candidates={candidates}: give 1 or more.")
    if reading and dataset is None:
        raise ConfigError(f"{option_of(next(iter(reading)))} says how to read a graph: give --dataset with it.")
    from grash import api
    from grash.engines.run import use_threads

    listen()
    use_threads(threads)
    loaded = api.load_model(model, device=device)
    other = None if dataset is None else api.load_dataset(dataset, **reading)
    result = api.evaluate(
        loaded, other, split=split, sample=sample, candidates=candidates, unseen=unseen, seed=seed
    ).to_dict()
    if json:
        as_json(result)
    else:
        show_evaluation(result, per_relation=per_relation)


def show_evaluation(result: dict[str, Any], *, per_relation: bool = False) -> None:
    """Tables of an Evaluation as a dict, with what exactly was measured."""
    suffix = "" if result["candidates"] is None else f"@{result['candidates']}neg"
    low, high = result[f"mrr_interval{suffix}"]
    columns = tuple(f">{name}{suffix}" for name in _COLUMNS)
    rows = [(_slot_word(slot), *_numbers(result[slot], suffix)) for slot in ("both", "head", "tail")]
    print(f"\n{_measured(result)}\n")
    table(("asked for", *columns), rows)
    print(f"\n95 % interval of the MRR{suffix}: {low:.4f} to {high:.4f} (bootstrap over triples).")
    groups = [("per_cardinality", "kind of relation")] + ([("per_relation", "relation")] if per_relation else [])
    for key, word in groups:
        if result[key]:
            rows = [(name, m["n"], *_numbers(m, suffix)) for name, m in result[key].items()]
            print()
            table((word, ">questions", *columns), rows)


def _measured(result: dict[str, Any]) -> str:
    n, of = result["n_triples"], result["n_triples_in_split"]
    which = f"all {n:,}" if n == of else f"{n:,} of {of:,}"
    against = "all entities" if result["candidates"] is None else f"{result['candidates']:,} drawn entities"
    unseen = ""
    if result["n_unseen"]:
        what = "left out" if result["unseen"] == "drop" else "kept"
        unseen = f"; {result['n_unseen']:,} with something that train has not, {what}"
    if result.get("n_trained"):
        unseen += f"; the model was trained with {result['n_trained']:,} of them"
    return (
        f"{result['split']}: {which} triples ranked against {against}, filtered by "
        f"{', '.join(result['filter'])}{unseen}"
    )


def _slot_word(slot: str) -> str:
    return "head and tail" if slot == "both" else slot


def _numbers(metrics: dict[str, Any], suffix: str) -> list[float]:
    return [float(metrics[f"{name}{suffix}"]) for name in _COLUMNS]
