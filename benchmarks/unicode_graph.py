"""Write a graph that comes with Python: characters, what they are made of, and the words of their names.

    python benchmarks/unicode_graph.py unicode.tsv

Characters up to U+FEFF without ideographs and syllables: category, direction, width, script, block, numeric value,
upper and lower case, parts of the decomposition, words of the name. About 18,000 entities and 108,000 triples (Unicode
14, Python 3.11). Nothing in grash was chosen on it, and many of its questions have hundreds of answers.
"""

from __future__ import annotations

import argparse
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

RANGES = range(0x20, 0x3000), range(0xA640, 0xAC00), range(0xFB00, 0xFEFF)
MOST_WORDS = 8  # of a name; the first is the script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    chars = [chr(i) for codes in RANGES for i in codes if unicodedata.name(chr(i), None)]
    triples = sorted({triple for char in chars for triple in triples_of(char, set(chars))})
    random.Random(0).shuffle(triples)
    path.write_text("".join("\t".join(triple) + "\n" for triple in triples), encoding="utf-8")
    print(f"{len(triples):,} triples of Unicode {unicodedata.unidata_version}")


def triples_of(char: str, chars: set[str]) -> Iterator[tuple[str, str, str]]:
    head = label(char)
    yield head, "category", unicodedata.category(char)
    yield head, "direction", f"direction {unicodedata.bidirectional(char)}"
    yield head, "block", f"block {ord(char) >> 7:X}"
    if unicodedata.combining(char):
        yield head, "combining class", f"class {unicodedata.combining(char)}"
    if unicodedata.east_asian_width(char) != "N":
        yield head, "width", f"width {unicodedata.east_asian_width(char)}"
    if (value := unicodedata.numeric(char, None)) is not None:
        yield head, "numeric value", f"value {value:g}"
    for relation, other in (("upper case", char.upper()), ("lower case", char.lower())):
        if other != char and other in chars:
            yield head, relation, label(other)
    kind, *parts = f"{unicodedata.decomposition(char)} ".split(" ")
    if not kind.startswith("<"):
        kind, parts = "<canonical>", [kind, *parts]
    for i, part in enumerate(filter(None, parts)):
        if chr(int(part, 16)) in chars:
            yield head, f"decomposes {kind}, part {min(i, 2) + 1}", label(chr(int(part, 16)))
    script, *words = unicodedata.name(char).replace("-", " ").split()[:MOST_WORDS]
    yield head, "script", script.title()
    for word in words:
        yield head, "named with", word.lower()


def label(char: str) -> str:
    return f"U+{ord(char):04X}"


if __name__ == "__main__":
    main()
