"""grash prepare, describe, reduce and datasets: from a source to an encoded dataset, and what is in it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grash.cli.console import as_json, command, say, share_display, show, show_log, status_line, table
from grash.cli.options import READING, Json, Overwrite, Source, with_options
from grash.errors import ConfigError
from grash.files import atomic_file, check_absent
from grash.formatting import counted, format_bytes

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.data.profile import Profile
    from grash.reduction.subgraph import Subgraph

Method = Literal["core-order", "k-core", "triples", "walk", "kgtuner"]
Degree = Literal["neighbors", "triples"]
_RELATIONS_SHOWN = 25


def add_to(app: typer.Typer) -> None:
    for verb in (prepare, describe, reduce):
        app.command(rich_help_panel="Graphs")(with_options(verb, reading=READING))
    datasets = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
    datasets.callback()(list_datasets)
    datasets.command("get")(get_dataset)
    app.add_typer(datasets, name="datasets", rich_help_panel="Graphs")


def prepare(
    source: Source,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write (default: NAME.grash).")] = None,
    overwrite: Overwrite = False,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit, e.g. 8G (default: half of the machine's memory).")
    ] = None,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Encode a graph, so that later commands load it at once.

    SOURCE can be a text file (tab, comma, …), RDF, Parquet or .npy, also compressed, or a folder with train, valid
    and test files, also in the layouts of LibKGE, RotatE, DGL-KE and OpenKE. Missing valid and test splits are split
    off train. A graph that may need more memory than the limit is read in parts, with temporary files in OUT.spill.
    After an interruption, the same command continues.
    """
    from grash.api.dataset import prepare
    from grash.data.readers.source import dataset_name

    show_log(verbose=not json)
    folder = out if out is not None else Path(f"{dataset_name(Path(source))}.grash")
    with share_display(quiet=json) as watch:
        dataset = prepare(source, folder, overwrite=overwrite, memory=memory, watch=watch, **reading)
    if json:
        about = {"folder": str(folder), "name": dataset.name}
        as_json(about | _counts(dataset, "train", "valid", "test") | {"provenance": dataset.provenance})
        return
    show(f"{folder}: {dataset!r}")
    show(f"Next: {command('grash', 'describe', folder)}")
    show(f"      {command('grash', 'search', folder)}")


def describe(source: Source, json: Json = False, *, reading: dict[str, Any]) -> None:
    """Describe a graph: splits, degrees, relations, and warnings.

    Relations are shown with their cardinality (1-1, 1-N, N-1, N-N). Warnings are about data that makes results look
    too good or too bad: duplicates, entities not seen in training, test triples whose inverse is in train.
    """
    from grash.api.dataset import describe, load_dataset

    show_log()
    profile = describe(load_dataset(source, **reading))
    if json:
        as_json(profile.to_dict())
    else:
        _print_profile(profile)


def reduce(
    source: Source,
    fraction: Annotated[
        str | None, typer.Option(help="Fraction of the train triples, e.g. 0.125 or 1/8 (kgtuner: of the entities).")
    ] = None,
    method: Annotated[
        Method, typer.Option(help="How to reduce; k-core: whole cores only. To compare: triples, walk, kgtuner.")
    ] = "core-order",
    degree: Annotated[
        Degree, typer.Option(help="core-order, k-core: whether a degree counts neighbors or triples.")
    ] = "neighbors",
    length: Annotated[int | None, typer.Option(help="walk: steps of each walk (default: 10).")] = None,
    starts: Annotated[int | None, typer.Option(help="walk: number of walks, instead of a fraction.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the validation split, the sample and the walks.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="SVG file: how the graph shrinks along the core order.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write (default: NAME-FRACTION.grash).")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Write a smaller graph to compare configurations on.

    Entities with few neighbors are removed until the train split is small enough. The result is an encoded dataset
    with the same names and its own valid split (20 %, at most 5,000 triples).
    """
    share = _parse_fraction(fraction)
    _check_reduction(share, method, length=length, starts=starts, plot=plot)
    from grash.api.dataset import load_dataset

    show_log()
    dataset = load_dataset(source, **reading)
    label = f"{float(share):g}" if share is not None else f"{starts}-walks"
    folder = out if out is not None else Path(f"{dataset.name}-{label}.grash")
    if not overwrite:
        check_absent(folder)
    if share is not None and method in ("core-order", "k-core"):
        subgraph = _cut(dataset, share, method, degree, seed, plot)
    else:
        subgraph = _sample(dataset, share, method, length, starts, seed)
    subgraph.dataset.save(folder, overwrite=overwrite)
    if json:
        about = {"folder": str(folder), "plot": None if plot is None else str(plot)}
        sizes = {name: getattr(subgraph, name) for name in ("k", "target", "fraction", "whole", "fell_back")}
        as_json(about | _counts(subgraph.dataset, "train", "valid") | sizes)
    else:
        _print_subgraph(dataset, subgraph, folder, plot)


def list_datasets(context: typer.Context, json: Json = False) -> None:
    """List public datasets; `grash datasets get NAME` downloads one."""
    if context.invoked_subcommand is not None:
        return
    from grash.data.catalog import CATALOG

    if json:
        as_json([{**asdict(e), "n_triples": e.n_triples, "size": e.size} for e in CATALOG.values()])
        return
    rows = [
        (e.name, e.entities, e.relations, e.n_triples, e.size and format_bytes(e.size), e.license, e.title)
        for e in CATALOG.values()
    ]
    columns = ("name", ">entities", ">relations", ">triples", ">download", "license", "title")
    table(columns, rows, spare=("title", "license"))
    show("\nGive a name to any command, e.g. `grash search fb15k-237`: the first use downloads it. `world` is bundled.")


def get_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `grash datasets`.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option(help="Folder of downloaded datasets (default: the user's cache folder).")
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Accept files that differ from the catalog's sizes and checksums.")
    ] = False,
) -> None:
    """Download and verify a public dataset, and print its folder. An interrupted download is continued.

    Every command that takes a graph also takes the name of a public dataset, and downloads it on first use. Without a
    network, put the file into FOLDER/NAME.download; the error message names it.
    """
    from grash.data.catalog import cache_folder, download, find_entry

    show_log()
    entry = find_entry(name)
    with status_line(keep=True) as draw:

        def progress(name: str, done: int, total: int | None) -> None:
            draw(f"{name}: {format_bytes(done)}" + (f" of {format_bytes(total)}" if total else ""))

        drawn = progress if sys.stderr.isatty() else None
        path = download(entry, folder or cache_folder(), progress=drawn, verify=not no_verify)
    show(path)
    if entry.notes:
        say(entry.notes)
    if entry.columns != "head,relation,tail":
        say(f"Its columns are {entry.columns}.")
    say(f"Next: {command('grash', 'describe', path)}")


def _counts(dataset: Dataset, *splits: Any) -> dict[str, Any]:
    counts = {"n_entities": dataset.n_entities, "n_relations": dataset.n_relations}
    sizes = {split: len(dataset.split(split)) for split in splits}
    return {**counts, "n_triples": sizes, "fingerprint": dataset.fingerprint}


def _print_profile(profile: Profile) -> None:
    counts = f"{counted(profile.n_entities, 'entity', 'entities')}, {counted(profile.n_relations, 'relation')}"
    show(f"{profile.name}: {counts}\n")
    rows = [
        (name, s.triples, s.duplicates, s.entities, s.unseen_entities, s.relations, s.unseen_relations)
        for name, s in profile.splits.items()
    ]
    table(("split", ">triples", ">duplicates", ">entities", ">unseen", ">relations", ">unseen"), rows)
    _print_reading(profile)
    degrees = profile.degrees
    quantiles = ", ".join(f"{name}: {value:g}" for name, value in degrees.quantiles.items())
    show(f"\nTrain triples per entity: {degrees.mean:.1f} on average; quantiles: {quantiles}.")
    one, none = f"{degrees.with_one_triple:,}", f"{degrees.not_in_train:,}"
    show(f"Entities with one train triple: {one}; with none: {none}.\n")
    _print_relations(profile)
    for warning in profile.warnings:
        show(f"\nwarning: {warning}")


def _print_reading(profile: Profile) -> None:
    """Print how the source was read, what was dropped and what was split off."""
    from grash.data.profile import SKIPPED
    from grash.data.readers.text import describe_text_format

    if (reading := profile.reading) is None:
        return
    splits_by_format: dict[str, list[str]] = {}
    for split, found in reading.read_as.items():
        splits_by_format.setdefault(describe_text_format(found), []).append(split)
    several = len(splits_by_format) > 1
    lines = [f"{', '.join(s)}: {text}." if several else f"{text}." for text, s in splits_by_format.items()]
    lines += [f"{count:,} {what}." for name, what in SKIPPED.items() if (count := getattr(reading, name))]
    if reading.duplicates_dropped:
        lines.append(f"{reading.duplicates_dropped:,} repeated triples of train were dropped.")
    if reading.split_off:
        counts = " and ".join(f"{count:,} {split}" for split, count in reading.split_off.items())
        lines.append(f"{counts} triples were split off train, with seed {reading.split_seed}.")
    if lines:
        show("\nHow it was read:\n" + "\n".join(f"  {line}" for line in lines))


def _print_relations(profile: Profile) -> None:
    relations = sorted(profile.relations, key=lambda r: -r.triples["train"])
    rows = [
        (
            r.name if r.name == r.name.strip() else repr(r.name),  # quotes make spaces at the ends visible
            r.triples["train"],
            r.heads,
            r.tails,
            None if r.tails_per_head is None else f"{r.tails_per_head:.1f}",
            None if r.heads_per_tail is None else f"{r.heads_per_tail:.1f}",
            r.cardinality,
            None if r.symmetry is None else f"{r.symmetry:.0%}",
        )
        for r in relations[:_RELATIONS_SHOWN]
    ]
    columns = (">train", ">heads", ">tails", ">tails/head", ">heads/tail", "kind", ">symmetric")
    table(("relation", *columns), rows, spare=(">heads", ">tails"))
    if len(relations) > _RELATIONS_SHOWN:
        show(f"… and {len(relations) - _RELATIONS_SHOWN:,} more; --json shows all.")


def _parse_fraction(text: str | None) -> Fraction | None:
    """Return the exact fraction: 0.1 is one tenth, 1/3 one third."""
    if text is None:
        return None
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise ConfigError(f"--fraction {text}: give a number above 0 and up to 1, e.g. 0.125 or 1/8.")
    return value


def _check_reduction(
    share: Fraction | None, method: Method, *, length: int | None, starts: int | None, plot: Path | None
) -> None:
    if method != "walk" and (length is not None or starts is not None):
        raise ConfigError(f"--length and --starts are only for --method walk, not for {method}: leave them out.")
    if (share is None) == (starts is None):
        wanted = "either --fraction or --starts" if method == "walk" else "--fraction"
        raise ConfigError(f"The size of the subgraph is not clear: give {wanted}, e.g. --fraction 0.125.")
    if plot is not None and method not in ("core-order", "k-core"):
        raise ConfigError(f"--plot draws cores, and --method {method} has none: leave out one of the two.")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigError(f"--plot {plot} is not an SVG file: give a name that ends in .svg.")


def _cut(dataset: Dataset, share: Fraction, method: Any, degree: Any, seed: int, plot: Path | None) -> Subgraph:
    from grash.reduction.cores import peel
    from grash.reduction.subgraph import core_order, cut
    from grash.report.charts import core_order_chart

    peeling = peel(dataset.train, dataset.n_entities, degree)
    order = core_order(dataset, peeling)
    subgraph = cut(dataset, peeling, share, reduction=method, seed=seed, names=True, order=order)
    if plot is not None:
        with atomic_file(plot) as temporary:
            temporary.write_text(core_order_chart(dataset, order, float(share)), encoding="utf-8")
    return subgraph


def _sample(
    dataset: Dataset, share: Fraction | None, method: Method, length: int | None, starts: int | None, seed: int
) -> Subgraph:
    from grash.reduction.sampling import LENGTH, kgtuner_walk, random_walks, sample_triples

    if method == "walk":
        steps = LENGTH if length is None else length
        return random_walks(dataset, share, length=steps, starts=starts, seed=seed, names=True)
    assert share is not None
    sample = sample_triples if method == "triples" else kgtuner_walk
    return sample(dataset, share, seed=seed, names=True)


def _print_subgraph(full: Dataset, subgraph: Subgraph, folder: Path, plot: Path | None) -> None:
    small = subgraph.dataset
    sizes = {
        "train triples": (len(small.train), len(full.train)),
        "entities": (small.n_entities, full.n_entities),
        "relations": (small.n_relations, full.n_relations),
    }
    rows: list[tuple[object, ...]] = [(name, a, b, f"{a / b:.2%}" if b else None) for name, (a, b) in sizes.items()]
    rows.insert(1, ("valid triples", len(small.valid), len(full.valid), None))
    table(("", ">subgraph", ">full graph", ">share"), rows)
    show(f"\n{_size_text(full, subgraph)}")
    show(f"{folder}: {small!r}")
    if plot is not None:
        show(f"{plot}: how the graph shrinks along the core order")
    show(f"Next: {command('grash', 'train', folder)}")


def _size_text(full: Dataset, subgraph: Subgraph) -> str:
    """Return how close the subgraph is to the requested size."""
    from grash.reduction.subgraph import max_train_triples

    if subgraph.whole:
        return "The full graph is small enough, so it is kept, with its own valid split."
    core = "" if subgraph.k is None else f"k = {subgraph.k}. "
    provenance = subgraph.dataset.provenance["reduction"]
    if provenance["method"] == "kgtuner" or provenance.get("starts") is not None:
        return f"{core}{subgraph.fraction:.4f} of the train triples."
    target = max_train_triples(subgraph.target, len(full.train))
    missing = target - len(subgraph.dataset.train)
    inner = " No core is that small, so the innermost one was cut further." if subgraph.fell_back else ""
    return f"{core}Target {subgraph.target:g}, or {target:,} train triples; missed by {missing:,}.{inner}"
