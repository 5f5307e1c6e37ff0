"""Files of questions, triples, candidates and answers: `predict --questions`, `score FILE`, `-o answers.csv`.

Candidates are names, one per line. All others have the columns head, relation, tail; answers also have asked (the
predicted side), rank, score and known. A file that is written has a header with these names, and one that is read may
have one. Answers to millions of questions are written in parts, so that an interrupted run continues where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from grash.cli.console import say
from grash.errors import ConfigError, InputError, UnknownName
from grash.files import atomic_file, check_absent, check_writable, write_json
from grash.formatting import printable
from grash.optional import optional_import

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = ("head", "relation", "tail")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
NTRIPLES = ".nt"

_T = TypeVar("_T")
_SKIPPED_SHOWN = 20  # skipped lines that get their own message
_BOM = b"\xef\xbb\xbf"


def check_answers_file(path: Path | None, *, overwrite: bool, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Raise an error, before anything is computed, if answers cannot be written to this file."""
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
    """Write rows to a file, in the format of its suffix, or to stdout with tabs; the first line names the columns."""
    if path is None:
        _write_text(columns, ([_short(value) for value in row] for row in rows), sys.stdout, "\t")
        return
    kind = path.suffix.lower()
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as text:
        if kind == ".parquet":
            _polars(path).DataFrame(list(rows), schema=list(columns), orient="row").write_parquet(temporary)
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

    plan: what the answers depend on. Parts of a run with the same plan are used again.
    """

    def __init__(self, path: Path, columns: Sequence[str], plan: dict[str, Any]) -> None:
        self.path, self.columns, self.kind = path, columns, path.suffix.lower()
        self.folder = path.with_name(f"{path.name}.parts")
        about = self.folder / "plan.json"
        plan = json.loads(json.dumps({"columns": list(columns), **plan}))
        if self._earlier_plan(about) != plan:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            write_json(about, plan)

    def has(self, number: int) -> bool:
        return self._file(number).is_file()

    def write(self, number: int, values: Sequence[Sequence[Any]]) -> None:
        """Write the columns of one block of questions, completely or not at all."""
        with atomic_file(self._file(number)) as temporary:
            if self.kind == ".parquet":
                _polars(self.path).DataFrame(dict(zip(self.columns, values))).write_parquet(temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as text:
                if self.kind == ".jsonl":
                    for row in zip(*values):
                        text.write(json.dumps(dict(zip(self.columns, row)), ensure_ascii=False, allow_nan=False) + "\n")
                else:
                    _write_text((), zip(*values), text, "," if self.kind == ".csv" else "\t")

    def join(self, n_parts: int) -> None:
        """Write the file from its parts, and remove these."""
        files = [self._file(number) for number in range(n_parts)]
        with atomic_file(self.path) as temporary:
            if self.kind == ".parquet":
                _polars(self.path).scan_parquet(files).sink_parquet(temporary)
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


def _polars(path: Path) -> Any:
    return optional_import("polars", extra="parquet", purpose=f"Writing {path}")


def read_questions(path: Path, widths: tuple[int, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers with head, relation and tail (or the first two, if that is a possible width).

    Fields are separated by tabs, or by commas if no line has a tab. A first line that names the columns is a header;
    other columns are then ignored.
    """
    from grash.data.readers.text import columns_by_name, split_line

    try:
        content = path.read_bytes().removeprefix(_BOM)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    n_rows = 0
    header: tuple[int, ...] = ()
    separator, n_columns = "\t" if b"\t" in content else ",", 0
    for number, line in enumerate(io.BytesIO(content), 1):
        try:
            fields = split_line(line.rstrip(b"\r\n").decode("utf-8"), ord(separator))
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
    return np.array(resolve_rows(path, names, lambda row: entity_id(row[0]), skip_unknown), np.int64)


def resolve_rows(
    path: Path, rows: Iterable[tuple[int, list[str]]], resolve: Callable[[list[str]], _T], skip_unknown: bool
) -> list[_T]:
    """Return what the rows of a file resolve to. Unknown names are an error, or their line is skipped."""
    found, n_skipped = [], 0
    for number, row in rows:
        try:
            found.append(resolve(row))
        except UnknownName as error:
            if not skip_unknown:
                hint = "--skip-unknown skips such lines."
                raise InputError(f"{path}, line {number}: {error} {hint}") from error
            n_skipped += 1
            if n_skipped <= _SKIPPED_SHOWN:
                say(f"{path}, line {number} is skipped: {error}")
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
    if n_skipped > _SKIPPED_SHOWN:
        n = n_skipped + len(found)
        say(f"{n_skipped:,} of {n:,} lines of {path} were skipped because of unknown names.")
    return found


def _write_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], text: IO[str], separator: str) -> None:
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    terminal = text.isatty()
    for row in rows:
        values = [str(value).lower() if isinstance(value, bool) else value for value in row]
        writer.writerow([printable(v) if terminal and isinstance(v, str) else v for v in values])


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
