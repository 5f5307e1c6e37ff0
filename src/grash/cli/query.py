"""grash predict, score, neighbors: using a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from json import dumps as encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from grash.cli.console import as_json, listen, say, table
from grash.cli.options import Count, Device, Json, ModelFolder, Threads, option_of, takes_source_options
from grash.errors import ConfigError, InputError, UnknownName

if TYPE_CHECKING:
    from grash.api.model import Model, Query


Head = Annotated[str | None, typer.Option("--head", help="Name (or id) of the head.", show_default=False)]
Relation = Annotated[str | None, typer.Option("--relation", help="Name of the relation.", show_default=False)]
Tail = Annotated[str | None, typer.Option("--tail", help="Name of the tail.", show_default=False)]

SkipUnknown = Annotated[
    bool, typer.Option("--skip-unknown", help="Of a file, leave out lines with names that the model does not know.")
]

_T = TypeVar("_T")
_PARTS = ("head", "relation", "tail")
_TOLD = 20  # lines that are left out, each by a sentence


def add_to(app: typer.Typer) -> None:
    for verb in (predict, score, neighbors):
        app.command()(verb)
    app.command()(takes_source_options(evaluate))


def predict(
    model: ModelFolder,
    head: Head = None,
    relation: Relation = None,
    tail: Tail = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries", help="File of questions: head, relation, tail by tabs or commas, ? for what is asked."
        ),
    ] = None,
    count: Count = 10,
    new_only: Annotated[bool, typer.Option("--new-only", help="Leave out answers that the graph has already.")] = False,
    skip_unknown: SkipUnknown = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the best answers for a missing head, relation or tail.

    Give two of --head, --relation and --tail, or a file of questions. Its lines are head, relation, tail, separated
    by tabs, or by commas where no line has a tab; head and relation alone ask for the tail too. Answers to a file are
    lines of head, relation, tail, score, known, separated by tabs; with --json, a JSON object per question.
    """
    from grash.api import model as model_api
    from grash.engines.trainer import set_threads

    listen()
    set_threads(threads)
    given = (head, relation, tail)
    if queries is not None and any(part is not None for part in given):
        raise InputError("A question and a file of questions are given: give one of them.")
    loaded = model_api.load_model(model, device=device)
    if queries is not None:
        _answer_file(loaded, queries, count, new_only, skip_unknown, json)
        return
    _check_skip(skip_unknown)
    answers = loaded.predict(*given, k=count, new_only=new_only)
    if json:
        as_json({"head": head, "relation": relation, "tail": tail, "answers": [asdict(a) for a in answers]})
        return
    table(("", "answer", ">score", "known"), [(i + 1, a.name, a.score, a.known) for i, a in enumerate(answers)])


def score(
    model: ModelFolder,
    triples: Annotated[
        Path | None, typer.Argument(help="File of triples: head, relation, tail by tabs or commas.", show_default=False)
    ] = None,
    head: Head = None,
    relation: Relation = None,
    tail: Tail = None,
    skip_unknown: SkipUnknown = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the scores of given triples: a file, or one by name.

    Higher is more plausible. A file is separated by tabs, or by commas where no line has a tab.
    """
    import numpy as np

    from grash.api import model as model_api
    from grash.engines.trainer import set_threads

    one = (head, relation, tail)
    if (triples is None) == (None in one):
        raise InputError("Give a file of triples, or all of --head, --relation and --tail.")
    listen()
    set_threads(threads)
    loaded = model_api.load_model(model, device=device)
    if triples is None:
        _check_skip(skip_unknown)
        rows, ids = [[str(head), str(relation), str(tail)]], [_by_id(loaded, [str(head), str(relation), str(tail)])]
    else:
        rows, ids = _understood(triples, _read_rows(triples, (3,)), lambda row: _by_id(loaded, row), skip_unknown)
    scores = loaded.score(np.array(ids).reshape(-1, 3)).tolist()
    if json:
        as_json([{"head": h, "relation": r, "tail": t, "score": s} for (h, r, t), s in zip(rows, scores)])
        return
    for row, value in zip(rows, scores):
        print(*row, f"{value:.6g}", sep="\t")


def neighbors(
    model: ModelFolder,
    entity: Annotated[str, typer.Argument(help="Name (or id) of an entity.", show_default=False)],
    count: Count = 10,
    metric: Annotated[str, typer.Option("--metric", help="cosine, euclidean or dot.")] = "cosine",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the entities whose embeddings are nearest."""
    from grash.api import model as model_api
    from grash.engines.trainer import set_threads

    listen()
    set_threads(threads)
    answers = model_api.load_model(model, device=device).neighbors(entity, count, metric)  # type: ignore[arg-type]
    if json:
        found = [{"name": a.name, "id": a.id, "score": a.score} for a in answers]
        as_json({"entity": entity, "metric": metric, "neighbors": found})
        return
    table(("", "entity", f">{metric}"), [(i + 1, a.name, a.score) for i, a in enumerate(answers)])


def _answer_file(model: Model, path: Path, count: int, new_only: bool, skip_unknown: bool, json: bool) -> None:
    given = {n: [*row, "?"][:3] for n, row in _read_rows(path, (2, 3)).items()}
    rows, questions = _understood(path, given, lambda row: _question(model, row), skip_unknown)
    answered = model.predict_many(questions, count, new_only=new_only)
    if not json:
        print("head", "relation", "tail", "score", "known", sep="\t")
    for row, answers in zip(rows, answered):
        if json:
            parts = {name: None if part == "?" else part for name, part in zip(_PARTS, row)}
            print(encode({**parts, "answers": [asdict(a) for a in answers]}, ensure_ascii=False))
            continue
        for answer in answers:
            triple = [answer.name if part == "?" else part for part in row]
            print(*triple, f"{answer.score:.6g}", str(answer.known).lower(), sep="\t")


def _read_rows(path: Path, widths: tuple[int, ...]) -> dict[int, list[str]]:
    """Line number → fields of a file with tabs, or with commas where no line has a tab; empty lines are skipped."""
    from grash.data.readers.text import split_line

    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    rows, separator = {}, "\t" if b"\t" in content else ","
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            fields = split_line(line.rstrip(b"\r").decode("utf-8"), ord(separator))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number} is no UTF-8: save the file as UTF-8.") from error
        if fields in ([], [""]):
            continue
        if len(fields) not in widths or "" in fields:
            need = " or ".join(map(str, widths))
            raise InputError(
                f"{path}, line {number} has {len(fields)} fields{' and one is empty' if '' in fields else ''}: "
                f"{need} are needed, separated by tabs, or by commas where no line has a tab."
            )
        rows[number] = fields
    if not rows:
        raise InputError(f"{path} is empty: give one line per question or triple.")
    return rows


def _understood(
    path: Path, rows: dict[int, list[str]], understand: Callable[[list[str]], _T], skip_unknown: bool
) -> tuple[list[list[str]], list[_T]]:
    """The rows of a file (by line number) and what they mean; what names something unknown is told or refused."""
    kept, found, n_unknown = [], [], 0
    for number, row in rows.items():
        try:
            found.append(understand(row))
        except UnknownName as error:
            if not skip_unknown:
                more = "--skip-unknown leaves such lines out."
                raise InputError(f"{path}, line {number}: {error} {more}") from error
            n_unknown += 1
            if n_unknown <= _TOLD:
                say(f"{path}, line {number} is left out: {error}")
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        else:
            kept.append(row)
    if n_unknown > _TOLD:
        say(f"{n_unknown:,} of {len(rows):,} lines of {path} are left out for names that the model does not know.")
    return kept, found


def _check_skip(skip_unknown: bool) -> None:
    if skip_unknown:
        raise ConfigError("--skip-unknown is for a file, and one by name is given: leave it out.")


def _question(model: Model, row: list[str]) -> Query:
    if row.count("?") != 1:
        raise InputError(f"one of head, relation and tail must be ?, and {row.count('?')} are.")
    return model.query(*(None if part == "?" else part for part in row))


def _by_id(model: Model, row: list[str]) -> tuple[int, int, int]:
    return model.entity_id(row[0]), model.relation_id(row[1]), model.entity_id(row[2])


# = grash evaluate: filtered ranking of a split, as a table or JSON.

_COLUMNS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")


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
    from grash.api import dataset as datasets_api
    from grash.api import model as model_api
    from grash.engines.trainer import set_threads

    listen()
    set_threads(threads)
    loaded = model_api.load_model(model, device=device)
    other = None if dataset is None else datasets_api.load_dataset(dataset, **reading)
    result = model_api.evaluate(
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
    rows = [(_slot_word(side), *_numbers(result[side], suffix)) for side in ("both", "head", "tail")]
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


def _slot_word(side: str) -> str:
    return "head and tail" if side == "both" else side


def _numbers(metrics: dict[str, Any], suffix: str) -> list[float]:
    return [float(metrics[f"{name}{suffix}"]) for name in _COLUMNS]
