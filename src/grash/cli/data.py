"""grash prepare, describe, datasets: from a source to an encoded dataset, and what is in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli import generate
from grash.cli.options import Json, Source, takes_source_options
from grash.cli.shares import share_display
from grash.cli.show import as_json, command, listen, say, table

if TYPE_CHECKING:
    from grash.data.catalog import CatalogEntry
    from grash.data.describe import Profile

_RELATIONS_SHOWN = 25


def add_to(app: typer.Typer) -> None:
    app.command()(takes_source_options(prepare))
    app.command()(takes_source_options(describe))
    datasets = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
    datasets.callback()(list_datasets)
    datasets.command("get")(get_dataset)
    app.add_typer(datasets, name="datasets")
    generate.add_to(app)


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
    from grash import api

    listen(verbose=not json)
    if out is None:
        out = Path(f"{_stem(source)}.grash")
    with share_display(quiet=json) as watch:
        dataset = api.prepare(source, out, overwrite=overwrite, memory=memory, watch=watch, **reading)
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
    from grash import api

    listen()
    profile = api.describe(api.load_dataset(source, **reading))
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
        (e.name, e.entities, e.relations, e.n_triples, _megabytes(e.size), e.licence, e.title) for e in CATALOG.values()
    ]
    table(("name", ">entities", ">relations", ">triples", ">download", "licence", "title"), rows)
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
    from grash.data.layouts import dataset_name

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
    from grash.data.understood import in_words

    if (reading := profile.reading) is None:
        return
    words: dict[str, list[str]] = {}
    for split, found in reading.read_as.items():
        words.setdefault(in_words(found), []).append(split)
    sentences = [f"{how}." if len(words) == 1 else f"{', '.join(splits)}: {how}." for how, splits in words.items()]
    if reading.repeats_dropped:
        sentences.append(f"{reading.repeats_dropped:,} triples of train repeated others and were dropped.")
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
