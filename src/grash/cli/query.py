"""grash evaluate, calibrate, predict, explain, score, neighbors, discover and export: use a trained model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grash.cli.answers import (
    BLOCK,
    NTRIPLES,
    PARTS,
    SUFFIXES,
    Bulk,
    check_out_file,
    read_candidates,
    read_question_ids,
    read_questions,
    resolve_rows,
    write_answers,
    write_bulk,
)
from grash.cli.console import as_json, command, say, seldom, show, show_log, status_line, table, wrapped
from grash.cli.options import (
    READING,
    Device,
    Json,
    ModelFolder,
    Overwrite,
    Quiet,
    Threads,
    TopK,
    option_name,
    with_options,
)
from grash.errors import ConfigError, InputError
from grash.formatting import counted
from grash.report.meaning import baseline_text, relation_rows, weak_relations

if TYPE_CHECKING:
    from grash.api.model import Model, Predictions, Query

Head = Annotated[str | None, typer.Option(help="Name of the head.")]
Relation = Annotated[str | None, typer.Option(help="Name of the relation.")]
Tail = Annotated[str | None, typer.Option(help="Name of the tail.")]
AnswersFile = Annotated[
    Path | None, typer.Option("--out", "-o", help="File for the answers: .csv, .tsv, .jsonl or .parquet.")
]
SkipUnknown = Annotated[bool, typer.Option("--skip-unknown", help="Skip lines of the file with unknown names.")]

_RELATIONS_SHOWN = 8
_METRICS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")
_EXPORTED = "A model folder; for settings also a YAML file or a run folder, for splits also a run folder or a graph."


def add_to(app: typer.Typer) -> None:
    reading = {name: READING[name] for name in ("separator", "header", "columns", "bad_lines", "literals", "format")}
    app.command(rich_help_panel="Models")(with_options(evaluate, reading=reading))
    for verb in (calibrate, predict, explain, score, neighbors, discover, export):
        app.command(rich_help_panel="Models")(verb)


def evaluate(
    model: ModelFolder,
    dataset: Annotated[
        str | None, typer.Option(help="Other triples, matched by names: a test file, or a folder with one.")
    ] = None,
    split: Annotated[Literal["valid", "test"], typer.Option(help="Split to rank.")] = "test",
    sample: Annotated[int | None, typer.Option(help="Rank a random sample of that many triples.")] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Rank among that many random entities; metrics are e.g. mrr@1000neg.")
    ] = None,
    like_known: Annotated[
        bool, typer.Option("--like-known", help="Also rank among entities seen on that side of the relation in train.")
    ] = False,
    unseen: Annotated[
        Literal["keep", "drop"], typer.Option(help="Triples with an entity or relation not seen in training.")
    ] = "keep",
    per_relation: Annotated[bool, typer.Option("--per-relation", help="Also show metrics per relation.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the interval.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Evaluate a model on a split: MRR, Hits@k and more.

    For each triple, the model ranks the true head and tail among all entities, leaving out other known answers. All
    triples of a file given with --dataset are ranked. Of a folder, its split is ranked; nothing is split off.
    """
    if reading and dataset is None:
        given = option_name(READING, next(iter(reading)))
        raise ConfigError(f"{given} is about reading a graph: give the graph with --dataset.")
    from grash.api.model import load_split

    loaded = _load(model, device, threads)
    other = None if dataset is None else load_split(dataset, split, **reading)
    options: dict[str, Any] = {"split": split, "sample": sample, "candidates": candidates, "unseen": unseen}
    result = loaded.evaluate(other, seed=seed, like_known=like_known, **options).to_dict()
    own = loaded.dataset.name
    filtered_by = [own] if other is None else [own, str(dataset)]
    if json:
        as_json({**result, "source": str(dataset or own), "filter_sources": filtered_by})
    else:
        show_evaluation(result, per_relation=per_relation, source=str(dataset or own), filtered_by=filtered_by)


def calibrate(
    model: ModelFolder,
    sample: Annotated[int | None, typer.Option(min=1, help="Questions per side (default: 5000).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the cross-fitting.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Learn on valid how often answers with such scores are right, and store it with the model.

    Afterwards predict and score show probabilities. Training does this by default. The table compares probabilities
    with how often answers were right: on valid by cross-fitting, on test with the stored calibration.
    """
    from grash.api.model import store_calibration
    from grash.evaluation.calibration import N_BINS

    loaded = _load(model, device, threads, calibrated=False)
    calibration = loaded.calibrate(sample=sample, seed=seed)
    if calibration is None:
        _check_valid(loaded, model)
        raise InputError(
            f"{model} cannot be calibrated: valid of {loaded.dataset.name} has "
            f"{counted(len(loaded.dataset.valid), 'triple')}, with too few right or wrong answers"
            f"{'' if sample is None else f' among --sample {sample:,}'}."
        )
    store_calibration(loaded, model)
    measured = {"valid": (calibration.first, calibration.answers)}
    if len(loaded.dataset.test):
        measured["test"] = loaded.measure_calibration(sample=sample, seed=seed)
    if json:
        parts = {split: dict(zip(("first", "answers"), both)) for split, both in measured.items()}
        found = {s: {name: {**asdict(r), "ece": r.ece} for name, r in both.items()} for s, both in parts.items()}
        as_json({"n_questions": calibration.n_questions, "temperature": calibration.temperature, "reliability": found})
        return
    show(f"\nFirst answers of held-out questions of {loaded.dataset.name}:\n")
    head = [f"{split}: {what}" for split in measured for what in ("questions", "right")]
    bins = [f"{10 * i} to {10 * i + 10} %" for i in range(N_BINS)]
    rows = [
        (
            text,
            *(v for first, _ in measured.values() for v in (first.counts[i], _share(first.counts[i], first.right[i]))),
        )
        for i, text in enumerate(bins)
    ]
    table(("probability", *(f">{name}" for name in head)), rows)
    show()
    if calibration.thresholds is not None:
        show(
            f"Triple classification: {calibration.thresholds.accuracy:.1%} right on valid (cross-fitted)".replace(
                "%", " %"
            )
        )
    for split, (first, answers) in measured.items():
        how = "cross-fitted" if split == "valid" else "not used to calibrate"
        show(f"{split} ({how}): expected calibration error {first.ece:.3f}, of the first ten answers {answers.ece:.3f}")


def _check_valid(loaded: Model, folder: Path) -> None:
    """Raise InputError if there is nothing to learn probabilities from."""
    if not len(loaded.dataset.valid):
        name = loaded.dataset.name
        raise InputError(f"{folder} has no probabilities: valid of {name} has no triples to learn them from.")


def _share(n: int, right: float) -> str:
    return f"{right:.0%}".replace("%", " %") if n else ""


def predict(
    model: ModelFolder,
    head: Head = None,
    relation: Relation = None,
    tail: Tail = None,
    questions: Annotated[
        Path | None, typer.Option(help="File with lines of head, relation, tail; ? is predicted.")
    ] = None,
    top_k: TopK = 10,
    new_only: Annotated[bool, typer.Option("--new-only", help="Leave out answers that are in the graph.")] = False,
    like_known: Annotated[
        bool, typer.Option("--like-known", help="Only entities seen on that side of the relation in train.")
    ] = False,
    answer_type: Annotated[str | None, typer.Option(help="Only entities with this type.")] = None,
    type_relation: Annotated[
        str | None, typer.Option(help="Relation from an entity to its type (default: rdf:type or the like).")
    ] = None,
    candidates: Annotated[Path | None, typer.Option(help="Only the entities in this file, one name per line.")] = None,
    skip_unknown: SkipUnknown = False,
    out: AnswersFile = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Predict the missing head, relation or tail.

    Give two of --head, --relation and --tail, or a file. The lines of a file are head, relation, tail, separated by
    tabs, or by commas if no line has a tab; head and relation alone ask for the tail. The file can have a header.
    Answers to a file, and those written with -o, have the columns head, relation, tail, asked, rank, score, known. With
    --json, each question of a file is one line. Answers to many questions are written in parts: after an interruption,
    the same command continues.
    """
    given = (head, relation, tail)
    if questions is not None and any(part is not None for part in given):
        raise InputError("Give either --questions or --head, --relation and --tail, not both.")
    check_out_file(out, overwrite=overwrite)
    one = questions is None
    loaded = _load(model, device, threads, skips_nothing=skip_unknown and one and candidates is None, one=one)
    filters: dict[str, Any] = {"new_only": new_only, "like_known": like_known}
    filters |= {"answer_type": answer_type, "type_relation": type_relation}
    filters["candidates"] = None if candidates is None else read_candidates(candidates, loaded.entity_id, skip_unknown)
    import numpy as np

    from grash.api.model import Query

    if questions is not None:
        asked = read_question_ids(questions, loaded, skip_unknown)
    else:
        asked = np.array([loaded.query(*given).row], np.int32)
    loaded.warn_of_unseen(asked)
    n_found = 0
    if json or (one and out is None):
        for first in range(0, len(asked), BLOCK):
            part = [Query(*(None if i < 0 else i for i in row)) for row in asked[first : first + BLOCK].tolist()]
            for query, answers in zip(part, loaded.predict_many(part, top_k, **filters)):
                n_found += len(answers)
                if json:
                    as_json(
                        {**_parts(loaded, query), "answers": [asdict(a) for a in answers]}, indent=2 if one else None
                    )
                elif answers:
                    _show_answers(loaded, query, answers)
    if out is not None or (not one and not json):
        n_found = write_bulk(Bulk(loaded, model, asked, top_k, filters), out, overwrite=overwrite)
    if not n_found:
        given_filters = [name for name, value in filters.items() if value is not None and value is not False]
        used = [f"--{name.replace('_', '-')}" for name in given_filters if name != "type_relation"]
        why = f"{' and '.join(used)} {'leaves' if len(used) == 1 else 'leave'} no candidate"
        say(f"No answer: {why if len(asked) else 'no question is left'}.")
    elif out is not None:
        say(f"{counted(n_found, 'answer')} to {counted(len(asked), 'question')}")


def explain(
    model: ModelFolder,
    head: Annotated[str, typer.Option(help="Name of the head.")],
    relation: Annotated[str, typer.Option(help="Name of the relation.")],
    tail: Annotated[str, typer.Option(help="Name of the tail.")],
    top_k: TopK = 10,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the reasons for an answer: paths and similar triples of the graph.

    The support of a reason is how far the score of the answer falls when one gradient step lowers the score of the
    reason by 1. Of the paths with the same relations, the best is shown.
    """
    found = _load(model, device, threads, one=True).explain(head, relation, tail, k=top_k)
    if json:
        as_json(found.to_dict())
        return
    show(f"{found.title()}\n")
    table((">", "kind", ">support", "known triples"), found.rows())
    if len({reason.kind for reason in found.reasons}) > 1:
        show("\nPaths and similar triples take turns, each ordered by support.")
    about = found.statistics
    show(
        f"\n{found.relation} has {about.n_triples:,} triples in train, with {about.n_heads:,} heads and "
        f"{about.n_tails:,} tails. {found.head} is the head of {about.head_seen:,} of them, "
        f"{found.tail} the tail of {about.tail_seen:,}."
    )
    for of in about.types:
        name = found.head if of.side == "head" else found.tail
        show(f"{name} has the type {of.type}, as {of.share:.0%} of the {of.side}s of {found.relation}.")


def score(
    model: ModelFolder,
    triples: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with lines of head, relation, tail.")
    ] = None,
    head: Head = None,
    relation: Relation = None,
    tail: Tail = None,
    probability: Annotated[
        bool | None,
        typer.Option(
            "--probability/--no-probability",
            help="Also compute probabilities, which takes longer (default: if the model is calibrated).",
            show_default=False,
        ),
    ] = None,
    skip_unknown: SkipUnknown = False,
    out: AnswersFile = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Score the triples of a file, or one triple.

    A higher score is more plausible. The columns of a file are separated by tabs, or by commas if no line has a tab; it
    can have a header. The output has the columns head, relation, tail, score. A calibrated model adds two columns:
    probability (how often held-out answers like this tail were right) and accepted (whether the score is above the
    threshold of the relation).
    """
    import numpy as np

    one = [str(part) for part in (head, relation, tail) if part is not None]
    if (triples is None) != (len(one) == 3):
        raise InputError("Give either a file of triples, or all of --head, --relation and --tail.")
    check_out_file(out, overwrite=overwrite)
    loaded = _load(model, device, threads, skips_nothing=skip_unknown and triples is None, one=triples is None)
    if triples is None:
        rows, ids = [one], [_triple_ids(loaded, one)]
    else:
        lines = read_questions(triples, (3,))
        resolved = resolve_rows(triples, lines, lambda row: (row, _triple_ids(loaded, row)), skip_unknown)
        found_rows = list(resolved)
        rows, ids = [row for row, _ in found_rows], [triple for _, triple in found_rows]
    loaded.warn_of_unseen(np.array(ids).reshape(-1, 3))
    found = {"score": loaded.score(np.array(ids).reshape(-1, 3)).tolist()}
    if probability or (probability is None and loaded.calibration is not None):
        found["probability"] = loaded.probability(np.array(ids).reshape(-1, 3)).tolist()
    if loaded.calibration is not None and loaded.calibration.thresholds is not None:
        found["accepted"] = loaded.classify(np.array(ids).reshape(-1, 3)).tolist()
    if json:
        as_json([dict(zip((*PARTS, *found), (*row, *values))) for row, *values in zip(rows, *found.values())])
    if out is not None or not json:
        write_answers((*PARTS, *found), ((*row, *values) for row, *values in zip(rows, *found.values())), out)


def neighbors(
    model: ModelFolder,
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="Name of an entity.", show_default=False)],
    top_k: TopK = 10,
    metric: Annotated[str, typer.Option(help="cosine, euclidean or dot.")] = "cosine",
    out: AnswersFile = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """List the entities with the most similar embeddings."""
    check_out_file(out, overwrite=overwrite)
    loaded = _load(model, device, threads, one=True)
    answers = loaded.neighbors(entity, top_k, metric)  # type: ignore[arg-type]
    ranked = list(enumerate(answers, 1))
    if json:
        found = [{"name": a.name, "id": a.id, "score": a.score} for a in answers]
        as_json({"entity": entity, "metric": metric, "neighbors": found})
    elif out is None:
        table(("rank", "neighbor", f">{metric}"), [(i, loaded.short_name(a.name), a.score) for i, a in ranked])
    if out is not None:
        write_answers(("entity", "neighbor", "rank", metric), ((entity, a.name, i, a.score) for i, a in ranked), out)


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=_EXPORTED, show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    format: Annotated[
        str, typer.Option(help="npy, word2vec, parquet, neo4j, splits, ntriples, pykeen or libkge.")
    ] = "npy",
    dataset: Annotated[str | None, typer.Option(help="pykeen, libkge: name of the graph in that library.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write embeddings, splits or settings for other programs.

    npy: entities.npy and relations.npy, with names in .tsv files. word2vec: entities.txt; spaces in names become
    underscores. parquet: id, name, embedding. neo4j: nodes.csv and relationships.csv for neo4j-admin database import.
    splits: train.txt, valid.txt and test.txt with names. ntriples: graph.nt, all triples as RDF. pykeen: pykeen.json, a
    pipeline. libkge: libkge.yaml, a training. Settings that the other library lacks are listed on stderr and in the
    file.
    """
    from grash.api.dataset import find_dataset
    from grash.api.model import load_model
    from grash.interop.export import CONFIG_FILES, GRAPH_FORMATS, check_format, export_config, export_graph, find_config

    show_log()
    check_format(format, dataset)
    kind: Any = format
    if format in CONFIG_FILES:
        config, graph = find_config(model)
        splits = command("grash", "export", model, "--format", "splits", "-o", "FOLDER")
        known: dict[str, Any] = {"graph": graph, "dataset": dataset, "splits": splits}
        path, remarks = export_config(config, out, kind, overwrite=overwrite, **known)
        for remark in remarks:
            say(remark)
        written = [path]
    elif format in GRAPH_FORMATS:
        written = export_graph(find_dataset(model), out, format, overwrite=overwrite)
    else:
        written = load_model(model, device="cpu").export(out, kind, overwrite=overwrite)
    for path in written:
        show(path)


def show_evaluation(
    result: dict[str, Any], *, source: str, filtered_by: Sequence[str], per_relation: bool = False
) -> None:
    """Print the tables of an evaluation, given as a dictionary.

    source: where the triples come from. filtered_by: the graphs whose triples were left out as known answers.
    """
    suffix = "" if result["candidates"] is None else f"@{result['candidates']}neg"
    low, high = result[f"mrr_interval{suffix}"]
    columns = tuple(f">{name}{suffix}" for name in _METRICS)

    def values(metrics: dict[str, Any]) -> list[float]:
        return [float(metrics[f"{name}{suffix}"]) for name in _METRICS]

    show(f"\n{_measured(result, source, filtered_by)}\n")
    sides = {"both": "head and tail", "head": "head", "tail": "tail"}
    table(("predicted", *columns), [(text, *values(result[side])) for side, text in sides.items()])
    show(f"\n95 % interval of the MRR{suffix}: {low:.4f} to {high:.4f} (bootstrap over triples).")
    if typed := result.get("like_known"):
        rows = [[text, *(float(typed[s][f"{name}@like_known"]) for name in _METRICS)] for s, text in sides.items()]
        show("\nAmong the entities seen on that side of the relation in train, and the true answer:\n")
        table(("predicted", *(f">{name}" for name in _METRICS)), rows)
        show(f"\nThe true answer of {typed['n_outside']:,} of {typed['both']['n']:,} questions was not seen there.")
    if baseline := baseline_text(result):
        show(f"{baseline[0].upper()}{baseline[1:]}.")
    groups = [("per_cardinality", "kind of relation")] + ([("per_relation", "relation")] if per_relation else [])
    for key, heading in groups:
        if result[key]:
            show()
            table((heading, ">questions", *columns), [(name, m["n"], *values(m)) for name, m in result[key].items()])


def show_relations(evaluation: dict[str, Any], model: Path) -> None:
    """Print the test results of the relations with the most questions, if there are several, between empty lines."""
    rows = relation_rows(evaluation)
    if len(rows) < 2:
        return
    show()
    table(("relation", ">questions", ">MRR", ">Hits@10", ">baseline MRR"), rows[:_RELATIONS_SHOWN])
    if len(rows) > _RELATIONS_SHOWN:
        more = command("grash", "evaluate", model, "--per-relation")
        show(f"… and {len(rows) - _RELATIONS_SHOWN:,} more: {more}")
    show()
    if weak := weak_relations(evaluation):
        show(wrapped(weak))


def _measured(result: dict[str, Any], source: str, filtered_by: Sequence[str]) -> str:
    """Return a line on what was ranked, against what, and how it was filtered."""
    n, total = result["n_triples"], result["n_triples_in_split"]
    which = f"all {n:,}" if n == total else f"{n:,} of {total:,}"
    against = "all entities" if result["candidates"] is None else f"{result['candidates']:,} random entities"
    known = f"{', '.join(result['filter'])} of {' and of '.join(filtered_by)}"
    text = f"{result['split']} of {source}: {which} triples ranked against {against}, filtered by {known}"
    if result["n_unseen"]:
        what = "dropped" if result["unseen"] == "drop" else "kept"
        text += f"; {result['n_unseen']:,} triples with an entity or relation not seen in training {what}"
    if result.get("n_trained"):
        text += f"; the model was trained on {result['n_trained']:,} of them"
    return text


def _load(
    folder: Path, device: str, threads: int | None, *, skips_nothing: bool = False, one: bool = False,
    calibrated: bool = True,
) -> Model:  # fmt: skip
    """Load a model. With `auto`, one question is answered on the CPU: to start a GPU and copy tables takes longer."""
    if skips_nothing:
        raise ConfigError("--skip-unknown is only for a file: leave it out.")
    from grash.api.model import Model
    from grash.engines.trainer import set_threads

    show_log()
    set_threads(threads)
    return Model.load(folder, "cpu" if one and device == "auto" else device, calibrated=calibrated)


def _parts(model: Model, query: Query) -> dict[str, str | None]:
    kinds = (model.entity_name, model.relation_name, model.entity_name)
    ids = (query.head, query.relation, query.tail)
    return {part: None if i is None else name(i) for part, name, i in zip(PARTS, kinds, ids)}


def _show_answers(model: Model, query: Query, answers: Predictions) -> None:
    """Print a table, and what its probabilities mean."""
    from grash.api.model import probability_meaning

    if model.calibration is None:
        ranked = enumerate(answers, 1)
        table(
            ("rank", "answer", ">score", "known"), [(i, model.short_name(a.name), a.score, a.known) for i, a in ranked]
        )
        return
    rows = [(i, model.short_name(a.name), a.score, percent(a.probability), a.known) for i, a in enumerate(answers, 1)]
    table(("rank", "answer", ">score", ">probability", "known"), rows)
    if (meaning := probability_meaning(model, query, answers)) is not None:
        say(f"\n{meaning}")


def percent(probability: float | None) -> str:
    """Return a probability as it is shown, e.g. "83 %" or "< 0.01 %"; empty for None."""
    if probability is None:
        return ""
    if probability > 0.99:
        return "> 99 %"  # more digits are beyond what a calibration can tell
    if probability < 0.0001:
        return "< 0.01 %"
    return f"{probability:.0%}".replace("%", " %") if probability >= 0.095 else f"{probability * 100:.2g} %"


def _triple_ids(model: Model, row: list[str]) -> tuple[int, int, int]:
    return model.entity_id(row[0]), model.relation_id(row[1]), model.entity_id(row[2])


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

    The probability of a triple is the smaller one of its two questions, for its tail and for its head. It counts how
    often questions with as many known answers have another one. The model must be calibrated, as it is after a
    training.
    """
    from grash.api.model import load_model
    from grash.engines.trainer import set_threads

    show_log()
    check_out_file(out, overwrite=overwrite, suffixes=(*SUFFIXES, NTRIPLES))
    set_threads(threads)
    loaded = load_model(model, device=device)
    if loaded.calibration is None:
        _check_valid(loaded, model)
        raise InputError(f"{model} is not calibrated, so it has no probabilities. Run: grash calibrate {model}")
    options: dict[str, Any] = {"k": top_k, "min_probability": min_probability, "like_known": not all_pairs}
    with status_line(keep=False) as draw:
        line = seldom(draw)
        watch = None if quiet else lambda done, total: line(f"{done:,} of {total:,} questions asked")
        found = loaded.discover(relation, **options, hide=measure, watch=watch)
        unlikely = {**options, "k": 1, "min_probability": 0.0}
        best = found[:1] or loaded.discover(relation, **unlikely, hide=measure, watch=watch)
    columns: tuple[str, ...] = ("head", "relation", "tail", "probability", "score")
    rows: list[tuple[Any, ...]] = [(t.head, t.relation, t.tail, t.probability, t.score) for t in found]
    if measure:
        columns, rows = (*columns, "held_out"), [(*row, t.known) for row, t in zip(rows, found)]
    if measure and found:
        n = sum(t.known for t in found)
        share = f" ({n / len(found):.0%})".replace("%", " %")
        say(f"{n:,} of {len(found):,} triples{share} are in valid or test, which were hidden; others may be true, too.")
    if json:
        as_json([dict(zip(columns, row)) for row in rows])
    if out is not None or not (json or (not found and sys.stdout.isatty())):
        write_answers(columns, rows, out)
    if out is not None:
        say(counted(len(rows), "new triple"))
    if not found:
        highest = f"the highest is {best[0].probability:.4g}" if best else "the graph has all that were asked about"
        say(f"No new triple with a probability of at least {min_probability:g}: {highest}.")
