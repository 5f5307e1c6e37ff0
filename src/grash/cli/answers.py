"""Files of questions, triples, candidates and answers: `predict --questions`, `score FILE`, `-o answers.csv`.

Candidates are names, one per line. All others have the columns head, relation, tail; answers also have asked (the
predicted side), rank, score and known. A file that is written has a header with these names, and one that is read may
have one. Answers to millions of questions are written in parts, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import typer

from grash.cli.console import say, seldom, status_line, table
from grash.errors import INTERRUPTED, ConfigError, InputError, UnknownName
from grash.files import atomic_file, check_absent, check_writable, write_json
from grash.formatting import format_duration, printable
from grash.optional import optional_import

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from grash.api.model import Model

PARTS = ("head", "relation", "tail")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
NTRIPLES = ".nt"
PAGES = (".html", ".htm")
BLOCK = 20_000  # questions answered and written together

_T = TypeVar("_T")
_SKIPPED_SHOWN = 20  # skipped lines that get their own message
_TEXTS = (*PARTS, "asked", "entity", "neighbor", "known", "accepted", "held_out")  # columns; the others are numbers
_ROWS_OF_TABLE = 1_000
_NUMBERS = ("score", "probability", "cosine", "dot", "euclidean")  # columns of numbers, in Parquet
_LEAST_PROBABILITY = 0.0001  # smaller ones would be 0.0000 in a table
_BOM = b"\xef\xbb\xbf"


def check_out_file(path: Path | None, *, overwrite: bool, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Raise an error, before anything is computed, if a result cannot be written to this file."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"-o {path}: the format is not clear. Give a name that ends in {', '.join(suffixes)}.")
    if not overwrite:
        check_absent(path)
    check_writable(path)
    if path.suffix.lower() == ".parquet":
        _polars(path)


def write_answers(columns: Sequence[str], rows: Iterable[Sequence[Any]], path: Path | None) -> None:
    """Write rows to a file, in the format of its suffix, or to stdout with tabs; the first line names the columns.

    In a terminal, they are tables instead.
    """
    if path is None and sys.stdout.isatty():
        shown = [name if name in _TEXTS else f">{name}" for name in columns]
        remaining = ([_in_terminal(*cell) for cell in zip(columns, row)] for row in rows)
        block = list(islice(remaining, _ROWS_OF_TABLE))
        table(shown, block)
        while block := list(islice(remaining, _ROWS_OF_TABLE)):
            table(shown, block)
        return
    if path is None:
        remaining = ([_short(value) for value in row] for row in rows)
        first = list(islice(remaining, 1))  # an error in the first answers comes before the header
        _write_text(columns, first, sys.stdout, "\t")
        _write_text((), remaining, sys.stdout, "\t")
        return
    kind = path.suffix.lower()
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as text:
        if kind == ".parquet":
            _parquet_frame(path, columns, rows, orient="row").write_parquet(temporary)
        elif kind == NTRIPLES:
            from grash.data.iris import ntriples_line

            text.writelines(ntriples_line(*map(str, row[:3])) for row in rows)
        elif kind == ".jsonl":
            for row in rows:
                text.write(json.dumps(dict(zip(columns, row)), ensure_ascii=False, allow_nan=False) + "\n")
        else:
            _write_text(columns, rows, text, "," if kind == ".csv" else "\t")
    say(f"answers: {path}")


class AnswerParts:
    """Writes answers block by block to a folder beside the file, and joins them at the end.

    plan: what the answers depend on. Parts of a run with the same plan are used again; others are only removed with
    `overwrite`.
    """

    def __init__(self, path: Path, columns: Sequence[str], plan: dict[str, Any], *, overwrite: bool = False) -> None:
        self.path, self.columns, self.kind = path, columns, path.suffix.lower()
        self.folder = path.with_name(f"{path.name}.parts")
        about = self.folder / "plan.json"
        plan = json.loads(json.dumps({"columns": list(columns), **plan}))
        earlier = self._earlier_plan(about)
        if earlier not in (None, plan) and not overwrite and any(self.folder.glob("[0-9]*")):
            raise ConfigError(
                f"{self.folder} has answers of an interrupted run with another model, other questions or other "
                f"options: run that one again to continue it, or give --overwrite to remove them, or another -o."
            )
        if earlier != plan:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            write_json(about, plan)

    def has(self, number: int) -> bool:
        return self._file(number).is_file()

    def write(self, number: int, values: Sequence[Sequence[Any]]) -> None:
        """Write the columns of one block of questions, completely or not at all."""
        with atomic_file(self._file(number)) as temporary:
            if self.kind == ".parquet":
                _parquet_frame(self.path, self.columns, values, orient="col").write_parquet(temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as text:
                if self.kind == ".jsonl":
                    for row in zip(*values):
                        text.write(json.dumps(dict(zip(self.columns, row)), ensure_ascii=False, allow_nan=False) + "\n")
                else:
                    _write_text((), zip(*values), text, "," if self.kind == ".csv" else "\t")

    def n_rows(self, number: int) -> int:
        """Return the number of answers in a part."""
        if self.kind == ".parquet":
            return len(_polars(self.path).read_parquet(self._file(number), columns=["rank"]))
        with self._file(number).open(encoding="utf-8", newline="") as text:
            separator = "," if self.kind == ".csv" else "\t"
            return sum(1 for _ in (text if self.kind == ".jsonl" else csv.reader(text, delimiter=separator)))

    def join(self, n_parts: int) -> None:
        """Write the file from its parts, and remove these."""
        files = [self._file(number) for number in range(n_parts)]
        with atomic_file(self.path) as temporary:
            if self.kind == ".parquet" and files:
                _polars(self.path).scan_parquet(files).sink_parquet(temporary)
            elif self.kind == ".parquet":
                _parquet_frame(self.path, self.columns, (), orient="row").write_parquet(temporary)
            else:
                with temporary.open("wb") as whole:
                    if self.kind != ".jsonl":
                        whole.write(("," if self.kind == ".csv" else "\t").join(self.columns).encode() + b"\n")
                    for file in files:
                        with file.open("rb") as part:
                            shutil.copyfileobj(part, whole)
        shutil.rmtree(self.folder, ignore_errors=True)
        say(f"answers: {self.path}")

    def _earlier_plan(self, about: Path) -> dict[str, Any] | None:
        """Return the plan of the folder, or None without one. InputError if it has other things than parts."""
        if not self.folder.exists() or (self.folder.is_dir() and not any(self.folder.iterdir())):
            return None
        try:
            plan = json.loads(about.read_text(encoding="utf-8"))
            if "columns" in plan:
                return dict(plan)
        except (OSError, ValueError, TypeError):
            pass
        raise InputError(f"{self.folder} is not of an earlier run: move it, or give another -o. Parts would go there.")

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}{self.kind}"


def _parquet_frame(path: Path, columns: Sequence[str], values: Iterable[Any], *, orient: str) -> Any:
    """Return a data frame whose types follow from the names of the columns, so that no answers have them, too."""
    polars = _polars(path)
    types = {"rank": polars.Int64, "known": polars.Boolean, "accepted": polars.Boolean, "held_out": polars.Boolean}
    types |= dict.fromkeys(_NUMBERS, polars.Float64)
    schema = {name: types.get(name, polars.String) for name in columns}
    return polars.DataFrame(list(values), schema=schema, orient=orient)


def _polars(path: Path) -> Any:
    return optional_import("polars", extra="parquet", purpose=f"Writing {path}")


def read_questions(path: Path, widths: tuple[int, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers with head, relation and tail (or the first two, if that is a possible width).

    Fields are separated by tabs, or by commas if no line has a tab. A first line that names the columns is a header;
    other columns are then ignored.
    """
    from grash.data.readers.text import columns_by_name, split_line

    n_rows = 0
    header: tuple[int, ...] = ()
    kept = None if path.is_file() else list(_lines(path))  # a pipe is read once
    separator, n_columns = (
        ord("\t" if any(b"\t" in line for line in (_lines(path) if kept is None else kept)) else ","),
        0,
    )
    for number, line in enumerate(_lines(path) if kept is None else kept, 1):
        try:
            fields = split_line(line.rstrip(b"\r\n").decode("utf-8"), separator)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8. Save the file as UTF-8.") from error
        if fields in ([], [""]):
            continue
        if not n_rows and n_columns == 0:
            names = fields if 2 not in widths or len(fields) != 2 else [*fields, "tail"]
            if "?" not in fields and (columns := columns_by_name(names)) is not None:
                header, n_columns = columns[: len(fields)], len(fields)
                continue
        if len(fields) == n_columns:
            fields = [fields[column] for column in header]
        if len(fields) not in widths or "" in fields:
            empty = ", one of them empty" if "" in fields else ""
            raise InputError(
                f"{path}, line {number}: found {len(fields)} fields{empty}, expected {' or '.join(map(str, widths))}. "
                f"Separate them by tabs, or by commas if no line has a tab."
            )
        n_rows += 1
        yield number, fields
    if not n_rows:
        raise InputError(f"{path} is empty: give one question or triple per line.")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, of which one is in memory at a time."""
    try:
        with path.open("rb") as file:
            yield from (line if i else line.removeprefix(_BOM) for i, line in enumerate(file))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def read_question_ids(path: Path, model: Model, skip_unknown: bool) -> NDArray[np.int32]:
    """Return the questions of a file by ids (n, 3), with −1 for the part to predict: 12 bytes for each."""
    import numpy as np

    rows = resolve_rows(path, read_questions(path, (2, 3)), Resolver(model), skip_unknown)
    return np.fromiter((part for row in rows for part in row), np.int32).reshape(-1, 3)


def read_candidates(path: Path, entity_id: Callable[[str], int], skip_unknown: bool) -> NDArray[np.int64]:
    """Return the ids of the entities in a file, one name per line."""
    import numpy as np

    try:
        lines = path.read_bytes().removeprefix(_BOM).decode("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8. Save the file as UTF-8.") from error
    names = [(number, [name]) for number, line in enumerate(lines, 1) if (name := line.rstrip("\r"))]
    if not names:
        raise InputError(f"{path} is empty: give one entity per line.")
    return np.fromiter(resolve_rows(path, names, lambda row: entity_id(row[0]), skip_unknown), np.int64)


def resolve_rows(
    path: Path, rows: Iterable[tuple[int, list[str]]], resolve: Callable[[list[str]], _T], skip_unknown: bool
) -> Iterator[_T]:
    """Yield what the rows of a file resolve to. Unknown names are an error, or their line is skipped."""
    n_found = n_skipped = 0
    for number, row in rows:
        try:
            found = resolve(row)
        except UnknownName as error:
            if not skip_unknown:
                hint = "--skip-unknown skips such lines."
                raise InputError(f"{path}, line {number}: {error} {hint}") from error
            n_skipped += 1
            if n_skipped <= _SKIPPED_SHOWN:
                say(f"{path}, line {number} is skipped: {error}")
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        else:
            n_found += 1
            yield found
    if n_skipped > _SKIPPED_SHOWN:
        say(f"{n_skipped:,} of {n_found + n_skipped:,} lines of {path} were skipped because of unknown names.")


def _write_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], text: IO[str], separator: str) -> None:
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    terminal = text.isatty()
    for row in rows:
        values = [str(value).lower() if isinstance(value, bool) else value for value in row]
        writer.writerow([printable(v) if terminal and isinstance(v, str) else v for v in values])


def _in_terminal(column: str, value: Any) -> Any:
    small = column == "probability" and value is not None and value < _LEAST_PROBABILITY
    return f"< {_LEAST_PROBABILITY:.4f}" if small else value


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


class Resolver:
    """Turns the fields of a line into ids, −1 for the question mark; names that it has seen are looked up once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.entity = lru_cache(1 << 20)(model.entity_id)
        self.relation = lru_cache(1 << 16)(model.relation_id)

    def __call__(self, row: list[str]) -> tuple[int, int, int]:
        head, relation, tail = [*row, "?"][:3]
        if (n := (head, relation, tail).count("?")) != 1:
            raise InputError(f"found {n} question marks. Exactly one of head, relation and tail must be ?.")
        first, last = (-1 if end == "?" else self.entity(end) for end in (head, tail))
        return first, -1 if relation == "?" else self.relation(relation), last


@dataclass(frozen=True, eq=False)
class Bulk:
    """Questions by ids with the options of their answers, which come as columns, block by block."""

    model: Model
    folder: Path
    ids: NDArray[np.int32]  # (n, 3), −1 for the part to predict
    k: int
    filters: dict[str, Any]

    @cached_property
    def allowed(self) -> NDArray[np.int64] | None:
        filters = (self.filters[name] for name in ("answer_type", "type_relation", "candidates"))
        allowed = self.model.allowed_entities(*filters)
        if allowed is not None and (self.ids[:, 1] < 0).any():
            raise InputError("A question for a relation has no candidates or answer type: these are about entities.")
        return allowed

    @property
    def columns(self) -> tuple[str, ...]:
        probability = () if self.model.calibration is None else ("probability",)
        return (*PARTS, "asked", "rank", "score", "known", *probability)

    def plan(self) -> dict[str, Any]:
        """Return what the answers depend on."""
        from grash.files import CHECKSUMS_FILE
        from grash.models.store import model_folder

        model = (model_folder(self.folder) / CHECKSUMS_FILE).read_bytes()
        kept = b"" if self.allowed is None else self.allowed.tobytes()
        digests = [hashlib.sha256(part).hexdigest() for part in (self.ids.data, model, kept)]
        flags = {name: self.filters[name] for name in ("new_only", "like_known")}
        return {
            "questions": digests[0],
            "model": digests[1],
            "allowed": digests[2],
            "k": self.k,
            "block": BLOCK,
            **flags,
        }

    def answers(self, first: int) -> list[list[Any]]:
        """Return the columns of the answers to a block of questions."""
        import numpy as np

        asked = self.ids[first : first + BLOCK]
        options = {name: self.filters[name] for name in ("new_only", "like_known")}
        found = self.model.answer_arrays(asked, self.k, allowed=self.allowed, **options)
        triples, column = asked[found.question], (asked[found.question] < 0).argmax(1)
        triples[np.arange(len(triples)), column] = found.answer
        kinds = (self.model.entity_name, self.model.relation_name, self.model.entity_name)
        names = [_names(name, triples[:, i]) for i, name in enumerate(kinds)]
        rest = [[PARTS[i] for i in column.tolist()], found.ranks().tolist(), found.score.tolist(), found.known.tolist()]
        return [*names, *rest, *([] if found.probability is None else [found.probability.tolist()])]


def _names(name_of: Callable[[int], str], ids: NDArray[np.integer]) -> list[str]:
    """Return the names of ids; each distinct one is looked up once."""
    import numpy as np

    distinct, places = np.unique(ids, return_inverse=True)
    return np.array([name_of(i) for i in distinct.tolist()], object)[places].tolist() if len(ids) else []


def write_bulk(bulk: Bulk, out: Path | None, *, overwrite: bool = False) -> int:
    """Write all answers: to a file in parts that a second run uses again, or to stdout. Return their number."""
    starts, n_rows = range(0, len(bulk.ids), BLOCK), 0

    def counted(answers: list[list[Any]]) -> list[list[Any]]:
        nonlocal n_rows
        n_rows += len(answers[0])
        return answers

    if out is None:
        write_answers(bulk.columns, (row for first in starts for row in zip(*counted(bulk.answers(first)))), None)
        return n_rows
    parts, began, n_done = AnswerParts(out, bulk.columns, bulk.plan(), overwrite=overwrite), time.monotonic(), 0
    kept = sum(parts.has(i) for i in range(len(starts)))
    if kept:
        say(f"{kept:,} of {len(starts):,} parts are there from an earlier run.")
    try:
        with status_line(keep=False) as draw_now:
            draw = seldom(draw_now)
            for i, first in enumerate(starts):
                if parts.has(i):
                    n_rows += parts.n_rows(i)
                else:
                    parts.write(i, counted(bulk.answers(first)))
                    n_done += min(BLOCK, len(bulk.ids) - first)
                    speed = n_done / max(time.monotonic() - began, 1e-9)
                    done = min(first + BLOCK, len(bulk.ids))
                    left = format_duration((len(bulk.ids) - done) / speed)
                    draw(f"{done:,} of {len(bulk.ids):,} questions, {speed:,.0f} per second, {left} left")
    except KeyboardInterrupt:
        n = sum(parts.has(i) for i in range(len(starts)))
        say(f"Interrupted. {n:,} of {len(starts):,} parts are written; run the same command again to continue.")
        raise typer.Exit(INTERRUPTED) from None
    parts.join(len(starts))
    return n_rows
