"""grash update and discover: a graph that grows, by new triples from outside or from its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.answers import NTRIPLES, SUFFIXES, check_answers_file, write_answers
from grash.cli.console import as_json, command, say, seldom, show, show_log, status_line, table
from grash.cli.options import READING, Device, Json, ModelFolder, Overwrite, Quiet, Threads, with_options
from grash.errors import InputError
from grash.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from grash.engines.update import UpdateReport
    from grash.training.loop import Progress


def add_to(app: typer.Typer) -> None:
    reading = {name: READING[name] for name in ("separator", "header", "columns", "literals", "format")}
    app.command(rich_help_panel="Models")(with_options(update, reading=reading))
    app.command(rich_help_panel="Models")(discover)


def update(
    model: ModelFolder,
    new_triples: Annotated[
        str | None, typer.Argument(metavar="[NEW_TRIPLES]", help="Triples to add: a file, or a folder with splits.")
    ] = None,
    removed: Annotated[str | None, typer.Option(help="File with triples to remove from the graph.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="New model folder (default: MODEL-updated).")] = None,
    epochs: Annotated[
        float | None,
        typer.Option("--epochs", "-e", help="Passes over the examples (default: 15 % of the earlier; frozen: 0)."),
    ] = None,
    replay: Annotated[
        float | None, typer.Option(help="Train on new triples and that many old ones for each (default: all).")
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Leave the rows of known entities and relations.")] = False,
    new_rows: Annotated[str, typer.Option(help="How new rows start: triples, neighbors or random.")] = "triples",
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Continue the training of a model after its graph has changed.

    Known names keep their rows, new ones get rows. The triples of valid and test stay held out. Prints what changed in
    the graph, metrics before and after, how far old rows moved, and the cost.
    """
    from grash.api.model import load_model, load_triples
    from grash.api.training import check_output
    from grash.models.store import model_folder

    show_log()
    source = model_folder(model)
    folder = out if out is not None else source.with_name(f"{source.name}-updated")
    if new_triples is None and removed is None:
        raise InputError("Nothing is given: give NEW_TRIPLES, or --removed FILE.")
    check_output(folder, overwrite=overwrite, test_sample=None)
    given = {"added": new_triples, "removed": removed}
    triples = {name: None if text is None else load_triples(text, **reading) for name, text in given.items()}
    loaded = load_model(model, device=device)
    before = loaded.evaluation
    with status_line(keep=False) as draw:
        watch = None if quiet else _watcher(draw)
        settings: dict[str, Any] = {"epochs": epochs, "replay": replay, "freeze": freeze, "new_rows": new_rows}
        grown, report = loaded.update(triples["added"], triples["removed"], **settings, threads=threads, watch=watch)
    grown.save(folder, overwrite=overwrite)
    if json:
        as_json({"model_folder": str(folder), **report.to_dict(), "evaluation": grown.evaluation or None})
        return
    _show_report(report)
    if before and grown.evaluation:
        both = (before["both"]["mrr"], grown.evaluation["both"]["mrr"])
        show(f"\nMRR on all of test: {both[0]:.4f} before, {both[1]:.4f} now (the graph and its test split changed).")
    show(f"\nSaved as {folder}. Try:\n  {command('grash', 'evaluate', folder)}")


def discover(
    model: ModelFolder,
    relation: Annotated[str | None, typer.Option(help="Only triples of this relation (default: all).")] = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", help="Number of triples.")] = 1000,
    min_probability: Annotated[float, typer.Option(help="Only triples with at least this probability.")] = 0.0,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Also entities not seen on that side of the relation in train.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Hide valid and test, and count how many of the triples they have.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the triples: .csv, .tsv, .jsonl, .parquet or .nt.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the most probable triples that the graph does not have.

    The probability of a triple is the smaller one of its two questions, for its tail and for its head. The model must
    be calibrated, as it is after a training.
    """
    from grash.api.model import load_model
    from grash.engines.trainer import set_threads

    show_log()
    check_answers_file(out, overwrite=overwrite, suffixes=(*SUFFIXES, NTRIPLES))
    set_threads(threads)
    loaded = load_model(model, device=device)
    if loaded.calibration is None:
        raise InputError(f"{model} is not calibrated, so it has no probabilities. Run: grash calibrate {model}")
    options: dict[str, Any] = {"k": top_k, "min_probability": min_probability, "like_known": not all_pairs}
    with status_line(keep=False) as draw:
        line = seldom(draw)
        watch = None if quiet else lambda done, total: line(f"{done:,} of {total:,} questions asked")
        found = loaded.discover(relation, **options, hide=measure, watch=watch)
    columns: tuple[str, ...] = ("head", "relation", "tail", "probability", "score")
    rows: list[tuple[Any, ...]] = [(t.head, t.relation, t.tail, t.probability, t.score) for t in found]
    if measure:
        columns, rows = (*columns, "held_out"), [(*row, t.known) for row, t in zip(rows, found)]
        n = sum(t.known for t in found)
        share = f" ({n / len(found):.0%})".replace("%", " %") if found else ""
        say(f"{n:,} of {len(found):,} triples{share} are in valid or test, which were hidden; others may be true, too.")
    if json:
        as_json([dict(zip(columns, row)) for row in rows])
    if out is not None or not json:
        write_answers(columns, rows, out)


def _watcher(draw: Callable[[str], None]) -> Callable[[Progress], None]:
    from grash.engines.memory import choose_device, used_bytes
    from grash.report.live import progress_line

    memory = format_bytes(used_bytes(choose_device("cpu")))
    return lambda progress: draw(progress_line(progress, progress.epoch * progress.n_steps / progress.step, memory))


def _show_report(report: UpdateReport) -> None:
    for sentence in report.diff.sentences():
        show(sentence)
    show()
    rows = [(c.what, c.n, "" if c.before is None else c.before, c.after) for c in report.changes]
    table(("MRR of", ">triples", ">before", ">after"), rows)
    show()
    for what, drift in (("entities", report.entity_drift), ("relations", report.relation_drift)):
        moved = f"{drift.n_moved:,} of {drift.n_rows:,} old rows of {what} moved"
        by = f"by {drift.mean:.1%} of a row's length on average, {drift.largest:.1%} at most"
        show(f"{moved}, {by}.".replace("%", " %") if drift.n_moved else f"{moved}.")
    show(
        f"{report.positives:,} examples ({report.epochs_of_all:.1f} epochs of the graph) in "
        f"{format_duration(report.seconds)}; optimizer state {report.optimizer_state}."
    )
    if report.diff.n_new_relations:
        say("A new relation has few triples at first: check its answers before you rely on them.")
