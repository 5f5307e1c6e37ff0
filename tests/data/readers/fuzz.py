"""Mutated files at every reader, compared with plain readers that know nothing of grash.

    python -m tests.data.readers.fuzz 20000 --seed 1 [--first 0]

Each case takes a small file of some format, mutates it, and reads it. It fails if anything but a dataset or a sentence
comes back, if it takes more than 10 seconds or 2 GiB, or if the triples are not those that the csv module (text), NumPy
(arrays) or rdflib (RDF, if installed) find in the same file, unless grash reported what it left out. Cases run in
processes of some hundred each, so that a crash is a finding too. `run_case(seed, number)` repeats one.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import functools
import gzip
import io
import logging
import lzma
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

MAX_SECONDS, MAX_BYTES = 10, 2 << 30
PER_PROCESS = 500
Triple = tuple[str, str, str]

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip
SEPARATORS = {"tabs": "\t", "commas": ",", "semicolons": ";", "bars": "|", "spaces or tabs": None}
PIECES = [b"\t", b"\n", b"\r\n", b"\r", b",", b";", b"|", b'"', b'""', b" ", b"  ", b"\\", b"#", b"\0", b"\xef\xbb\xbf"]
PIECES += [b"\xff", b"\xc3\xa4", b"'", b".", b"<", b">", b"_:b", b"@en", b"^^", b"&amp;", b"&", b"0", b"-1", b"9" * 20]
PIECES += [
    b"head,relation,tail\n",
    b"a\tr\tb\n",
    b'"x\ny"',
    b"\xe2\x80\xa8",
    b"\x85",
    b"\x0b",
    b"{",
    b"}",
    b"<<",
    b">>",
]


@dataclass(frozen=True)
class Seed:
    """A file before it is mutated."""

    suffix: str
    content: bytes
    separator: str | None = None  # of text, in the words of grash; None for other formats
    n_columns: int = 3
    beside: tuple[tuple[str, bytes], ...] = ()  # other files of a folder; suffix is then the name of the train file


class Finding(Exception):
    """A case that went wrong."""


def text_seeds() -> Iterator[Seed]:
    names = ["Ann Lee", "Bob", "x y z", "ü", "q1", "q2", "12", "Acme, Inc.", 'the "best"', "a; b; c", "O'Neil", "a|b"]
    rows = [(names[i % 12], f"r{i % 3}", names[(i * 5 + 1) % 12]) for i in range(30)]
    plain = [(f"e{h}", f"r{i % 3}", f"e{i * i % 13}") for i, h in enumerate([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5] * 4)]
    for header in ([], [("head", "relation", "tail")]):
        yield Seed(".tsv", "".join("\t".join(row) + "\n" for row in [*header, *rows]).encode(), "tabs")
        yield Seed(".txt", "".join(" ".join(row) + "\n" for row in [*header, *plain]).encode(), "spaces or tabs")
        yield Seed(".txt", "".join("|".join(row) + "\n" for row in [*header, *plain]).encode(), "bars")
        for delimiter, name in ((",", "commas"), (";", "semicolons")):
            for end in ("\n", "\r\n"):
                out = io.StringIO()
                csv.writer(out, delimiter=delimiter, lineterminator=end).writerows([*header, *rows])
                yield Seed(".csv", out.getvalue().encode(), name)
    out = io.StringIO()
    wide = [
        ("id", "source", "note", "type", "target"),
        *((i, h, "one; two, three", r, t) for i, (h, r, t) in enumerate(rows)),
    ]
    csv.writer(out, lineterminator="\n").writerows(wide)
    yield Seed(".csv", out.getvalue().encode(), "commas", 5)


def rdf_seeds() -> Iterator[Seed]:
    nodes = ["<http://x.org/a>", "<http://x.org/b#1>", "<http://x.org/\\u00e4>", "_:n1", "<urn:x:c>"]
    ends = [*nodes, '"text"', '"say \\"hi\\"\\n"@en', '"1"^^<http://www.w3.org/2001/XMLSchema#integer>']
    rows = [(nodes[i % 5], f"<http://x.org/r{i % 3}>", ends[i * 3 % 8]) for i in range(30)]
    yield Seed(".nt", "".join(f"{h} {r} {t} .\n" for h, r, t in rows).encode())
    yield Seed(".nq", "".join(f"{h} {r} {t} <http://x.org/g{i % 2}> .\n" for i, (h, r, t) in enumerate(rows)).encode())
    turtle = "@prefix x: <http://x.org/> .\n# a comment\n" + "".join(
        f"x:e{i} x:r{i % 3} x:e{i * i % 7} , [ x:r0 x:e1 ] ;\n  a x:T ; x:n {i} , true, 'it''s'@en .\n".replace(
            "''", "\\'"
        )
        for i in range(12)
    )
    yield Seed(".ttl", (turtle + "( x:a x:b ) x:r1 <http://x.org/z> .\n").encode())
    inside = "".join(
        f'<rdf:Description rdf:about="http://x.org/e{i}"><x:r rdf:resource="http://x.org/e{i * i % 7}"/>'
        f"<x:name>n &amp; {i}</x:name><x:s><rdf:Description><x:r rdf:resource='http://x.org/q'/></rdf:Description></x:s>"
        f"</rdf:Description>\n"
        for i in range(10)
    )
    head = '<?xml version="1.0"?>\n<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:x="http://x.org/">\n'
    yield Seed(".rdf", f"{head}{inside}</rdf:RDF>\n".encode())


def table_seeds() -> Iterator[Seed]:
    import polars

    ids = np.array([[i % 7, i % 2, i * i % 9] for i in range(40)])
    for array in (ids.astype(np.int32), ids, ids.astype(np.uint8)):
        out = io.BytesIO()
        np.save(out, array)
        yield Seed(".npy", out.getvalue())
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, train=ids, valid=ids[:3])
        yield Seed(".npz", out.getvalue())
    table = polars.DataFrame(
        {"head": [f"e{i % 9}" for i in range(60)], "relation": ["r", "s"] * 30, "tail": ["x"] * 60}
    )
    for compression in ("uncompressed", "zstd", "snappy"):
        out = io.BytesIO()
        table.write_parquet(out, compression=compression)
        yield Seed(".parquet", out.getvalue())


def folder_seeds() -> Iterator[Seed]:
    """LibKGE, OpenKE and RotatE: ids or names, with dictionaries."""
    names = {"entities": [f"e {i}ä" for i in range(12)], "relations": ["r0", "r,1"]}
    rows = [(i * 5 % 12, i % 2, i * i % 12) for i in range(30)]
    dictionary = {stem: "".join(f"{i}\t{name}\n" for i, name in enumerate(of)) for stem, of in names.items()}
    files = (("entity_ids.del", dictionary["entities"]), ("relation_ids.del", dictionary["relations"]))
    yield folder("train.del", "".join(f"{h}\t{r}\t{t}\n" for h, r, t in rows), files)
    named = "".join(f"{names['entities'][h]}\t{names['relations'][r]}\t{names['entities'][t]}\n" for h, r, t in rows)
    files = (("entities.dict", dictionary["entities"]), ("relations.dict", dictionary["relations"]))
    yield folder("train.txt", named, files)
    swapped = {stem: "".join(f"{name}\t{i}\n" for i, name in enumerate(of)) for stem, of in names.items()}
    files = (("entity2id.txt", f"12\n{swapped['entities']}"), ("relation2id.txt", f"2\n{swapped['relations']}"))
    yield folder("train2id.txt", "30\n" + "".join(f"{h} {t} {r}\n" for h, r, t in rows), files)


def folder(train: str, content: str, beside: tuple[tuple[str, str], ...]) -> Seed:
    return Seed(train, content.encode(), beside=tuple((name, text.encode()) for name, text in beside))


@functools.cache
def all_seeds() -> list[Seed]:
    return [*text_seeds(), *text_seeds(), *rdf_seeds(), *rdf_seeds(), *table_seeds(), *folder_seeds()]


def mutate(content: bytes, rng: random.Random) -> bytes:
    raw = bytearray(content)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(raw) + 1)
        length = rng.choice([1, 1, 2, 5, 40])
        way = rng.randrange(7)
        if way == 0 and raw:
            raw[at % len(raw)] = rng.randrange(256)
        elif way == 1:
            del raw[at : at + length]
        elif way in (2, 3):
            raw[at:at] = rng.choice(PIECES)
        elif way == 4:
            other = rng.randrange(len(raw) + 1)
            raw[at:at] = raw[other : other + length]
        elif way == 5:
            lines = bytes(raw).split(b"\n")
            rng.shuffle(lines) if rng.random() < 0.3 else lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            raw = bytearray(b"\n".join(lines))
        elif rng.random() < 0.3:
            del raw[at:]
    return bytes(raw)


def run_case(seed: int, number: int, folder: Path) -> str:
    """Return what came of a case: refused, compared, or read without another reader. Raises Finding."""
    from grash.data.load import load_dataset
    from grash.errors import GrashError

    rng = random.Random(f"{seed}-{number}")
    start = rng.choice(all_seeds())
    content = mutate(start.content, rng)
    path, raw = folder / f"case{start.suffix}", content
    if start.suffix not in (".npy", ".npz", ".parquet") and rng.random() < 0.15:
        raw = COMPRESSIONS[rng.choice(list(COMPRESSIONS))](content)
        if rng.random() < 0.5:
            raw = mutate(raw, rng)
            content = b"" if raw[:2] else content  # damaged: there is no other reader
    path.write_bytes(raw)
    if start.beside:
        path.rename(folder / start.suffix)
        for name, text in start.beside:
            (folder / name).write_bytes(mutate(text, rng) if rng.random() < 0.3 else text)
        path = folder
    options: dict[str, Any] = {"n_valid": 0, "n_test": 0, "duplicates": "keep"}
    if start.separator and rng.random() < 0.4:
        options["bad_lines"] = "skip"
    if start.separator and start.n_columns == 3 and rng.random() < 0.15:
        options["columns"] = rng.choice(["htr", "0,1,2", (2, 1, 0)])
    if start.separator and rng.random() < 0.1:
        options["header"] = rng.random() < 0.5
    begin = time.monotonic()
    try:
        dataset = load_dataset(path, **options)
    except GrashError as error:
        if not str(error).endswith((".", "?", ")")) or "Traceback" in str(error) or len(str(error)) > 3000:
            raise Finding(f"not a sentence: {str(error)[:300]!r}") from error
        dataset = None
    except BaseException as error:
        raise Finding(f"{type(error).__name__}: {str(error)[:300]}") from error
    finally:
        seconds, n_bytes = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if seconds > MAX_SECONDS or n_bytes > MAX_BYTES:
            raise Finding(f"{seconds:.1f} seconds, {n_bytes >> 20} MiB")
    if dataset is None:
        return check_refusal(start, content, options)
    found = named_triples(dataset)
    if not content:
        return "read"
    if start.beside:
        return check_folder(folder, start.suffix, content, found)
    if start.separator is not None:
        return check_text(start, content, dataset.provenance, found, options)
    if start.suffix in (".npy", ".npz"):
        return check_arrays(path, found)
    return check_rdf(start.suffix, content, found) if start.suffix != ".parquet" else "read"


def named_triples(dataset: Any) -> list[Triple]:
    rows = dataset.train.tolist()
    if dataset.entities is None:
        return [(str(h), str(r), str(t)) for h, r, t in rows]
    entities, relations = list(dataset.entities), list(dataset.relations)
    return [(entities[h], relations[r], entities[t]) for h, r, t in rows]


def check_refusal(start: Seed, content: bytes, options: dict[str, Any]) -> str:
    """A file that was not changed is read."""
    if content == start.content and not {"columns", "header"} & set(options) and not start.beside:
        raise Finding("an unchanged file was refused")
    return "refused"


def check_text(start: Seed, content: bytes, provenance: dict[str, Any], found: list[Triple], options: Any) -> str:
    read_as = provenance["read_as"]["train"]
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8")  # grash accepted it, so it is UTF-8
    assert start.separator is not None
    usual = plain_records(text, SEPARATORS[start.separator])
    n_usual = sum(len(record) == start.n_columns for record in usual or [])
    if usual and len(usual) > 1 and n_usual >= 0.7 * len(usual) and read_as["separator"] != start.separator:
        raise Finding(f"separated by {start.separator} before, read as {read_as}")
    records = plain_records(text, SEPARATORS[read_as["separator"]])
    if (
        records is None
        and read_as["header"]
        and plain_records(text.partition("\n")[2], SEPARATORS[read_as["separator"]])
    ):
        return "read"  # a wrong quote in the header, of which only the words matter
    if records is None:  # the csv module refuses it; grash left out the bad lines
        if options.get("bad_lines") != "skip" or not provenance.get("bad_lines_skipped"):
            raise Finding("the csv module refuses the quotes of this file")
        return "read"
    if read_as["header"]:
        width, records = len(records[0]), records[1:]
    else:
        width = Counter(map(len, records)).most_common(1)[0][0] if "," in str(options.get("columns")) else 3
    columns = read_as["columns"]
    good = [tuple(r[c] for c in columns) for r in records if len(r) == width and all(r[c] for c in columns)]
    n_bad = len(records) - len(good)
    if n_bad != provenance.get("bad_lines_skipped", 0):
        raise Finding(f"{n_bad} bad lines, reported {provenance.get('bad_lines_skipped', 0)}")
    if good != found:
        raise Finding(f"other triples: {[pair for pair in zip(good, found) if pair[0] != pair[1]][:3]}")
    return "compared"


def plain_records(text: str, separator: str | None) -> list[list[str]] | None:
    """Return the records of a text without blank lines; None if the csv module refuses it."""
    lines = text.split("\n")
    if separator in (",", ";"):
        # a return within a line belongs to a name, but the csv module ends the line there
        ends = [re.sub("\r(?!\n)", "\ue000", f"{line}\n") for line in lines]
        try:
            records = list(csv.reader(ends[: -1 if not lines[-1] else None], delimiter=separator, strict=True))
        except csv.Error:
            return None
        records = [[field.replace("\ue000", "\r") for field in record] for record in records]
        return [r for r in records if len(r) > 1 or r == [""] or (r and r[0].strip(" \t"))]  # "" is no blank line
    kept = [line.removesuffix("\r") for line in lines if line.removesuffix("\r").strip(" \t")]
    if separator is None:
        return [[f for f in line.replace("\t", " ").split(" ") if f] for line in kept]
    return [line.split(separator) for line in kept]


def check_folder(folder: Path, train: str, content: bytes, found: list[Triple]) -> str:
    """Compare with the lines split at tabs and spaces, for the three layouts of folder_seeds."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {train: content}  # not compressed
    texts = {name: raw.decode("utf-8-sig") for name, raw in files.items()}
    rows, tabs = ({name: plain_records(text, by) for name, text in texts.items()} for by in (None, "\t"))
    if train == "train.txt":
        wanted = [tuple(row) for row in tabs[train] or []]
    elif train == "train.del":
        names = [{int(i): name for i, name in tabs[f"{s}_ids.del"] or []} for s in ("entity", "relation", "entity")]
        wanted = [tuple(of[int(i)] for of, i in zip(names, row)) for row in rows[train] or []]
    else:
        parts = [(tabs[f"{s}2id.txt"] or [])[1:] for s in ("entity", "relation")]
        entities, relations = ({int(i): name for name, i in part} for part in parts)
        wanted = [(entities[int(h)], relations[int(r)], entities[int(t)]) for h, t, r in (rows[train] or [])[1:]]
    if wanted != found:
        raise Finding(f"other triples: {[pair for pair in zip(wanted, found) if pair[0] != pair[1]][:3]}")
    return "compared"


def check_arrays(path: Path, found: list[Triple]) -> str:
    loaded = np.load(path, allow_pickle=False)
    names = getattr(loaded, "files", None)
    array = loaded if names is None else loaded["train" if len(names) > 1 else names[0]]
    if [tuple(map(str, row)) for row in array.tolist()] != found:
        raise Finding("NumPy reads other ids")
    return "compared"


def check_rdf(suffix: str, content: bytes, found: list[Triple]) -> str:
    try:
        import rdflib
    except ImportError:
        return "read"
    logging.getLogger("rdflib").setLevel(logging.CRITICAL)
    kind = {".nt": "nt", ".nq": "nquads", ".ttl": "turtle", ".rdf": "xml"}[suffix]
    graph = rdflib.Dataset(default_union=True) if kind == "nquads" else rdflib.Graph()
    try:
        graph.parse(data=content, format=kind)
    except Exception:  # rdflib refuses what grash reads leniently
        return "read"
    iri = rdflib.term.URIRef
    wanted = {
        tuple(map(str, t[:3])) for t in graph.triples((None, None, None)) if all(isinstance(x, iri) for x in t[:3])
    }
    mine = {row for row in found if not any(name.startswith("_:") for name in row)}
    mine = {tuple(re.sub(r"^<(_:.*)>$", r"\1", name) for name in row) for row in mine}  # an IRI like a blank node
    # white space is not allowed in IRIs, and the two keep it differently
    wanted, mine = ({tuple(re.sub(r"\s+", " ", name) for name in row) for row in rows} for rows in (wanted, mine))
    if any(set(' <>"') & set(name) or name.startswith("file:") for row in wanted for name in row):
        return "read"  # rdflib takes all between the first < and the last > for an IRI, and completes relative ones
    if wanted != mine:
        raise Finding(f"rdflib has {sorted(wanted - mine)[:3]}, grash has {sorted(mine - wanted)[:3]}")
    return "compared"


def run_cases(seed: int, first: int, stop: int) -> None:
    """Run cases in this process; print `number outcome` for each."""
    from grash.data.load import load_dataset

    logging.disable(logging.CRITICAL)
    load_dataset("world")  # compiles what is not compiled yet
    with tempfile.TemporaryDirectory() as name:
        for number in range(first, stop):
            print(number, end=" ", flush=True)
            folder = Path(name) / str(number)
            folder.mkdir()
            try:
                print(run_case(seed, number, folder), flush=True)
            except Exception as finding:  # another reader that fails where grash does not is a finding too
                print(f"FOUND {type(finding).__name__}: {finding}".replace("\n", "\\n"), flush=True)


def fuzz(n: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Run n cases in processes of PER_PROCESS; return how many ended how, and the findings."""
    outcomes: Counter[str] = Counter()
    findings: list[str] = []
    stop = first + n
    while first < stop:
        last = min(first + PER_PROCESS, stop)
        command = [sys.executable, "-m", "tests.data.readers.fuzz"]
        command += [str(last - first), "--seed", str(seed), "--first", str(first), "--here"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60 + MAX_SECONDS * 20, check=False, env=environment()
            )
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            output, code = (error.stdout or b"").decode("utf-8", "replace"), "a hang"
        lines = output.splitlines()
        for line in lines:
            number, _, outcome = line.partition(" ")
            if outcome:
                outcomes["FOUND" if outcome.startswith("FOUND") else outcome] += 1
                findings += [f"case {number}: {outcome[6:]}"] if outcome.startswith("FOUND") else []
        if code == 0:
            first = last
        else:
            broken = int(lines[-1].split()[0]) if lines else first
            outcomes["FOUND"] += 1
            findings.append(f"case {broken}: the process ended with {code}")
            first = broken + 1
    return outcomes, findings


def environment() -> dict[str, str]:
    root = Path(__file__).parents[3]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="number of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        run_cases(given.seed, given.first, given.first + given.n)
    else:
        counts, found_cases = fuzz(given.n, given.seed, given.first)
        print("\n".join(found_cases))
        print(", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common()))
        sys.exit(bool(found_cases))
