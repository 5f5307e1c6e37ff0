"""grash prepare, describe, datasets: from a source to an encoded dataset, and what is in it."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grash.cli.console import as_json, command, listen, say, share_display, table
from grash.cli.options import Json, Source, takes_source_options
from grash.errors import ConfigError, InputError

if TYPE_CHECKING:
    from grash.data.catalog import CatalogEntry
    from grash.data.dataset import Dataset
    from grash.data.profile import Profile
    from grash.reduction.subgraph import Subgraph


_RELATIONS_SHOWN = 25


def add_to(app: typer.Typer) -> None:
    app.command()(takes_source_options(prepare))
    app.command()(takes_source_options(describe))
    datasets = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
    datasets.callback()(list_datasets)
    datasets.command("get")(get_dataset)
    app.add_typer(datasets, name="datasets")
    app.command()(takes_source_options(reduce))


def prepare(
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder to write; NAME.grash here by default.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an encoded dataset that is there.")] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="What it may take, as 8G; half of the machine's by default.", show_default=False),
    ] = None,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Encode a graph, so that later commands open it at once.

    SOURCE may be a text file (tab, comma, …), RDF, Parquet or .npy, compressed or not, or a folder with train,
    valid and test files, also in the layouts of LibKGE, RotatE, DGL-KE and OpenKE. Without valid and test files,
    they are split off train. What may need more memory than it is given is read in parts, by way of a folder OUT.spill;
    if that is interrupted, the same command goes on.
    """
    from grash.api import dataset as datasets_api

    listen(verbose=not json)
    if out is None:
        out = Path(f"{_stem(source)}.grash")
    with share_display(quiet=json) as watch:
        dataset = datasets_api.prepare(source, out, overwrite=overwrite, memory=memory, watch=watch, **reading)
    if json:
        as_json({"folder": str(out), **_counts(dataset), "provenance": dataset.provenance})
        return
    print(f"{out}: {dataset!r}")
    print(f"Next: {command('grash', 'describe', out)}")
    print(f"      {command('grash', 'train', out)}")


def describe(source: Source, json: Json = False, *, reading: dict[str, Any]) -> None:
    """Show what a graph is made of, with warnings.

    Counts per split, degrees, relations with their cardinality (1-1, 1-N, N-1, N-N), and warnings
    about what would make results look better than they are: duplicates, entities that train has not seen, test
    triples whose inverse stands in train.
    """
    from grash.api import dataset as datasets_api

    listen()
    profile = datasets_api.describe(datasets_api.load_dataset(source, **reading))
    if json:
        as_json(profile.to_dict())
        return
    _show_profile(profile)


def list_datasets(context: typer.Context, json: Json = False) -> None:
    """List public datasets; `datasets get NAME` downloads one."""
    if context.invoked_subcommand is not None:
        return
    from grash.data.catalog import CATALOG

    if json:
        as_json([_entry(entry) for entry in CATALOG.values()])
        return
    rows = [
        (e.name, e.entities, e.relations, e.n_triples, _megabytes(e.size), e.license, e.title) for e in CATALOG.values()
    ]
    table(("name", ">entities", ">relations", ">triples", ">download", "license", "title"), rows)
    print("\ngrash datasets get NAME downloads one. Bundled, without download: world.")


def get_dataset(
    name: Annotated[str, typer.Argument(help="A name from `grash datasets`.", show_default=False)],
    folder: Annotated[Path, typer.Option("--folder", help="Where datasets are kept.")] = Path("datasets"),
) -> None:
    """Download a public dataset, go on after a break, verify it, and say where it is.

    Without a network, put the file into FOLDER/NAME.download by hand: the error message says which and where.
    """
    from grash.data.catalog import find_entry
    from grash.data.download import download

    listen()
    entry = find_entry(name)
    place = download(entry, folder, progress=_show_download if sys.stderr.isatty() else None)
    if sys.stderr.isatty():
        say("")
    print(place)
    if entry.notes:
        say(entry.notes)
    if entry.columns != "head,relation,tail":
        say(f"Its columns are {entry.columns}.")
    say(f"Next: {command('grash', 'describe', place)}")


def _show_download(name: str, done: int, total: int | None) -> None:
    share = f" of {total / 1e6:,.1f}" if total else ""
    print(f"\r{name}: {done / 1e6:,.1f}{share} MB\x1b[K", end="", file=sys.stderr, flush=True)


def _stem(source: str) -> str:
    from grash.data.readers.folders import dataset_name

    return dataset_name(Path(source))


def _counts(dataset: Any) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "n_entities": dataset.n_entities,
        "n_relations": dataset.n_relations,
        "n_triples": {split: len(dataset.split(split)) for split in ("train", "valid", "test")},
        "fingerprint": dataset.fingerprint,
    }


def _entry(entry: CatalogEntry) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(entry), "n_triples": entry.n_triples, "size": entry.size}


def _megabytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 1e6:,.1f} MB"


def _show_profile(profile: Profile) -> None:
    print(f"{profile.name}: {profile.n_entities:,} entities, {profile.n_relations:,} relations\n")
    table(
        ("split", ">triples", ">duplicates", ">entities", ">relations", ">unseen entities", ">unseen relations"),
        [
            (name, s.triples, s.duplicates, s.entities, s.relations, s.unseen_entities, s.unseen_relations)
            for name, s in profile.splits.items()
        ],
    )
    _show_reading(profile)
    degrees = profile.degrees
    quantiles = ", ".join(f"{name}: {value:g}" for name, value in degrees.quantiles.items())
    print(f"\nTrain triples per entity: {degrees.mean:.1f} on average; quantiles: {quantiles}.")
    print(f"{degrees.with_one_triple:,} entities have one train triple, {degrees.not_in_train:,} have none.\n")
    relations = sorted(profile.relations, key=lambda r: -r.triples["train"])
    table(
        ("relation", ">train", ">heads", ">tails", ">tails per head", ">heads per tail", "kind", ">symmetric"),
        [
            (_shown(r.name), r.triples["train"], r.heads, r.tails, _short(r.tails_per_head), _short(r.heads_per_tail),
             r.cardinality, _percent(r.symmetry))
            for r in relations[:_RELATIONS_SHOWN]
        ],
    )  # fmt: skip
    if len(relations) > _RELATIONS_SHOWN:
        print(f"… and {len(relations) - _RELATIONS_SHOWN:,} more; --json has them all.")
    for warning in profile.warnings:
        print(f"\nwarning: {warning}")


def _show_reading(profile: Profile) -> None:
    """What was understood, dropped and split off when the source was read."""
    from grash.data.provenance import describe_text_format

    if (reading := profile.reading) is None:
        return
    words: dict[str, list[str]] = {}
    for split, found in reading.read_as.items():
        words.setdefault(describe_text_format(found), []).append(split)
    sentences = [f"{how}." if len(words) == 1 else f"{', '.join(splits)}: {how}." for how, splits in words.items()]
    if reading.duplicates_dropped:
        sentences.append(f"{reading.duplicates_dropped:,} triples of train repeated others and were dropped.")
    if reading.split_off:
        counts = " and ".join(f"{count:,} {split}" for split, count in reading.split_off.items())
        sentences.append(f"{counts} triples were split off train, with seed {reading.split_seed}.")
    if sentences:
        print("\nWhen it was read:\n" + "\n".join(f"  {sentence}" for sentence in sentences))


def _shown(name: str) -> str:
    """A name as it is; in quotes where it begins or ends with a space."""
    return name if name == name.strip() else repr(name)


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


# = grash reduce: a graph becomes a smaller graph, written as an encoded dataset.

Method = Literal["kcore", "triples", "walk", "kgtuner"]


def reduce(
    source: Source,
    fraction: Annotated[
        str | None,
        typer.Option("-f", "--fraction", help="Share of the train triples, as 0.125 or 1/8; kgtuner: of the entities."),
    ] = None,
    method: Annotated[
        Method, typer.Option("--method", help="kcore; for comparison triples (a sample), walk, kgtuner.")
    ] = "kcore",
    reduction: Annotated[
        Literal["core-order", "k-core"],
        typer.Option(
            "--reduction", help="kcore: to the triple along the peel order (chain), or whole cores only (ladder)."
        ),
    ] = "core-order",
    degree: Annotated[
        Literal["neighbors", "triples"],
        typer.Option("--degree", help="kcore: what an entity needs k of."),
    ] = "neighbors",
    length: Annotated[int | None, typer.Option("--length", help="walk: steps of each walk (10).")] = None,
    starts: Annotated[int | None, typer.Option("--starts", help="walk: so many walks, instead of a fraction.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the validation split, the sample and the walks.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw how the graph shrinks along the core order, as an SVG file."),
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

    Entities with few neighbors are peeled off train until its train part is as small as asked for. The result has a
    validation part of its own (20 %, at most 5,000 triples), keeps the names, and is an encoded dataset as from grash
    prepare.
    """
    share = _fraction(fraction)
    _check(share, method, length=length, starts=starts, plot=plot)
    from grash.api import dataset as datasets_api

    listen()
    dataset = datasets_api.load_dataset(source, **reading)
    place = out if out is not None else Path(f"{dataset.name}-{_label(share, starts)}.grash")
    if place.exists() and not overwrite:
        raise InputError(f"{place} already exists: give another folder with -o, or allow --overwrite.")
    if method == "kcore":
        assert share is not None
        subgraph = _cut(dataset, share, reduction, degree, seed, plot)
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
        raise ConfigError(f"--plot draws cores, and --method {method} has none: leave out one of the two.")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigError(f"--plot {plot} is not an SVG file: give a name that ends in .svg.")


def _label(share: Fraction | None, starts: int | None) -> str:
    return f"{float(share):g}" if share is not None else f"{starts}-walks"


def _cut(dataset: Dataset, share: Fraction, reduction: Any, degree: Any, seed: int, plot: Path | None) -> Subgraph:
    from grash.files import atomic_file
    from grash.reduction.cores import peel
    from grash.reduction.subgraph import core_order, cut
    from grash.report.charts import core_order_chart

    peeling = peel(dataset.train, dataset.n_entities, degree)
    order = core_order(dataset, peeling)
    subgraph = cut(dataset, peeling, share, reduction=reduction, seed=seed, names=True, order=order)
    if plot is not None:
        with atomic_file(plot) as temporary:
            temporary.write_text(core_order_chart(dataset, order, float(share)), encoding="utf-8")
    return subgraph


def _sampled(
    dataset: Dataset, share: Fraction | None, method: Method, length: int | None, starts: int | None, seed: int
) -> Subgraph:
    from grash.reduction.sampling import LENGTH, kgtuner_walk, random_walks, sample_triples

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
        print(f"{plot}: how the graph shrinks along the core order")
    print(f"Next: {command('grash', 'train', place)}")


def _sentence(full: Dataset, subgraph: Subgraph) -> str:
    from grash.reduction.subgraph import max_train_triples

    if subgraph.whole:
        return (
            "Even the whole graph without a validation part is as small as that: it is taken whole, with its own valid."
        )
    n_train = len(subgraph.dataset.train)
    core = "" if subgraph.k is None else f"k = {subgraph.k}. "
    method = subgraph.dataset.provenance["reduction"]["method"]
    if method == "kgtuner" or subgraph.dataset.provenance["reduction"].get("starts") is not None:
        return f"{core}{subgraph.fraction:.4f} of the train triples."
    aim = max_train_triples(subgraph.target, len(full.train))
    missing = f"Target {subgraph.target:g}, or {aim:,} train triples; missed by {aim - n_train:,}."
    inner = " No core is that small, so the innermost one was cut further." if subgraph.fell_back else ""
    return core + missing + inner
