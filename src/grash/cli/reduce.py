"""grash reduce: a graph becomes a smaller graph, written as an encoded dataset."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grash.cli.options import Json, Source, takes_source_options
from grash.cli.show import as_json, command, listen, table
from grash.errors import ConfigError, InputError

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.reduction.subgraph import Subgraph

Method = Literal["kcore", "triples", "walk", "kgtuner"]


def add_to(app: typer.Typer) -> None:
    app.command()(takes_source_options(reduce))


def reduce(
    source: Source,
    fraction: Annotated[
        str | None,
        typer.Option("-f", "--fraction", help="Share of the train triples, as 0.125 or 1/8; kgtuner: of the entities."),
    ] = None,
    method: Annotated[
        Method, typer.Option("--method", help="kcore; for comparison triples (a sample), walk, kgtuner.")
    ] = "kcore",
    way: Annotated[
        Literal["chain", "ladder"],
        typer.Option("--way", help="kcore: to the triple along the peel order (chain), or whole cores only (ladder)."),
    ] = "chain",
    count: Annotated[
        Literal["neighbours", "triples"],
        typer.Option("--count", help="kcore: what an entity needs k of."),
    ] = "neighbours",
    length: Annotated[int | None, typer.Option("--length", help="walk: steps of each walk (10).")] = None,
    starts: Annotated[int | None, typer.Option("--starts", help="walk: so many walks, instead of a fraction.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the validation split, the sample and the walks.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw how the graph shrinks along the chain, as .png, .svg or .pdf."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder to write; NAME-FRACTION.grash here by default.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoded dataset that is there.")] = False,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Write a smaller graph, on which configurations compare much as on the full one.

    Entities with few neighbours are peeled off train until its train part is as small as asked for. The result has a
    validation part of its own (20 %, at most 5,000 triples), keeps the names, and is an encoded dataset as from grash
    prepare.
    """
    share = _fraction(fraction)
    _check(share, method, length=length, starts=starts, plot=plot)
    from grash import api

    listen()
    dataset = api.load_dataset(source, **reading)
    place = out if out is not None else Path(f"{dataset.name}-{_label(share, starts)}.grash")
    if place.exists() and not overwrite:
        raise InputError(f"{place} exists already: give another folder with -o, or allow --overwrite.")
    if method == "kcore":
        assert share is not None
        subgraph = _cut(dataset, share, way, count, seed, plot)
    else:
        subgraph = _sampled(dataset, share, method, length, starts, seed)
    subgraph.dataset.save(place, overwrite=overwrite)
    _show(dataset, subgraph, place, plot, as_document=json)


def _fraction(text: str | None) -> Fraction | None:
    """The exact number: 0.1 is a tenth, 1/3 a third."""
    if text is None:
        return None
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise ConfigError(f"--fraction {text} is no part of a graph: give a number above 0, up to 1, as 0.125 or 1/8.")
    return value


def _check(
    share: Fraction | None, method: Method, *, length: int | None, starts: int | None, plot: Path | None
) -> None:
    if method != "walk" and (length is not None or starts is not None):
        raise ConfigError(f"--length and --starts say how to walk, and --method {method} does not: leave them out.")
    if (share is None) == (starts is None):
        wanted = "--fraction or --starts" if method == "walk" else "--fraction"
        raise ConfigError(f"How large the subgraph is to be is not clear: give {wanted}, as in --fraction 0.125.")
    if plot is not None and method != "kcore":
        raise ConfigError(f"--plot draws the chain of cores, and --method {method} has none: leave one of them out.")


def _label(share: Fraction | None, starts: int | None) -> str:
    return f"{float(share):g}" if share is not None else f"{starts}-walks"


def _cut(dataset: Dataset, share: Fraction, way: Any, count: Any, seed: int, plot: Path | None) -> Subgraph:
    from grash.reduction.chain import chain_of
    from grash.reduction.cut import cut
    from grash.reduction.picture import draw_chain
    from grash.reduction.stored import peeling_of

    peeling = peeling_of(dataset, count)
    chain = chain_of(dataset, peeling)
    subgraph = cut(dataset, peeling, share, way=way, seed=seed, names=True, chain=chain)
    if plot is not None:
        draw_chain(dataset, chain, plot, fraction=float(share))
    return subgraph


def _sampled(
    dataset: Dataset, share: Fraction | None, method: Method, length: int | None, starts: int | None, seed: int
) -> Subgraph:
    from grash.reduction.samples import sample_triples
    from grash.reduction.walks import LENGTH, kgtuner_walk, random_walks

    if method == "walk":
        steps = LENGTH if length is None else length
        return random_walks(dataset, share, length=steps, starts=starts, seed=seed, names=True)
    assert share is not None
    if method == "triples":
        return sample_triples(dataset, share, seed=seed, names=True)
    return kgtuner_walk(dataset, share, seed=seed, names=True)


def _show(full: Dataset, subgraph: Subgraph, place: Path, plot: Path | None, *, as_document: bool) -> None:
    small = subgraph.dataset
    if as_document:
        as_json(
            {
                "folder": str(place), "plot": None if plot is None else str(plot),
                "n_entities": small.n_entities, "n_relations": small.n_relations,
                "n_triples": {"train": len(small.train), "valid": len(small.valid)},
                "k": subgraph.k, "target": subgraph.target, "fraction": subgraph.fraction,
                "whole": subgraph.whole, "fell_back": subgraph.fell_back, "fingerprint": small.fingerprint,
            }
        )  # fmt: skip
        return
    rows = [
        ("train triples", len(small.train), len(full.train)),
        ("valid triples", len(small.valid), len(full.valid)),
        ("entities", small.n_entities, full.n_entities),
        ("relations", small.n_relations, full.n_relations),
    ]
    shares = [(*row, f"{row[1] / row[2]:.2%}" if row[2] and row[0] != "valid triples" else None) for row in rows]
    table(("", ">subgraph", ">full graph", ">share"), shares)
    print(f"\n{_sentence(full, subgraph)}")
    print(f"{place}: {small!r}")
    if plot is not None:
        print(f"{plot}: how the graph shrinks along the chain")
    print(f"Next: {command('grash', 'train', place)}")


def _sentence(full: Dataset, subgraph: Subgraph) -> str:
    from grash.reduction.holdout import target_of

    if subgraph.whole:
        return (
            "Even the whole graph without a validation part is as small as that: it is taken whole, with its own valid."
        )
    n_train = len(subgraph.dataset.train)
    core = "" if subgraph.k is None else f"k = {subgraph.k}. "
    method = subgraph.dataset.provenance["reduction"]["method"]
    if method == "kgtuner" or subgraph.dataset.provenance["reduction"].get("starts") is not None:
        return f"{core}{subgraph.fraction:.4f} of the train triples."
    aim = target_of(subgraph.target, len(full.train))
    missing = f"Target {subgraph.target:g}, or {aim:,} train triples; missed by {aim - n_train:,}."
    inner = " No core is as small, so the chain goes on within the innermost." if subgraph.fell_back else ""
    return core + missing + inner
