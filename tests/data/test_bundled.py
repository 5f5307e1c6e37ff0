"""The bundled graph: what docs/reference/datasets.md promises of it, and that a demo can learn from it."""

from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np

from grash.data.known_answers import CARDINALITIES, relation_cardinalities

DATA = files("grash.data") / "bundled"
TEXT = (DATA / "world.tsv").read_text(encoding="utf-8")
TRIPLES = [tuple(line.split("\t")) for line in TEXT.splitlines()]
DOC = (Path(__file__).parents[2] / "docs" / "reference" / "datasets.md").read_text(encoding="utf-8")
SYMMETRIC = ("neighbour_of", "near")


def degrees() -> Counter:
    return Counter(entity for head, _, tail in TRIPLES for entity in {head, tail})


def test_it_is_small_sorted_and_clean():
    assert len(TEXT.encode()) < 400_000
    lines = TEXT.splitlines()
    assert lines == sorted(set(lines))
    for triple in TRIPLES:
        assert len(triple) == 3
        assert all(name and name == name.strip() for name in triple)
    assert all(head != tail for head, _, tail in TRIPLES)


def test_the_docs_state_its_counts_and_kinds():
    counts = Counter(relation for _, relation, _ in TRIPLES)
    number = {name: i for i, name in enumerate([*sorted(degrees()), *sorted(counts)])}
    first = number[min(counts)]
    rows = [(number[head], number[relation] - first, number[tail]) for head, relation, tail in TRIPLES]
    codes = relation_cardinalities(np.array(rows, np.int32), len(counts))
    for relation, code in zip(sorted(counts), codes):
        row = DOC.split(f"\n| {relation} |")[1].split("\n")[0]
        kind = CARDINALITIES[code] + (", symmetric" if relation in SYMMETRIC else "")
        assert row.endswith(f"| {counts[relation]:,} | {kind} |")
    assert f"{len(TRIPLES):,} triples" in DOC
    assert f"{len(degrees()):,} entities" in DOC


def test_nearly_all_entities_have_two_triples_or_more():
    degree = degrees()
    lonely = [entity for entity, count in degree.items() if count < 2]
    assert len(lonely) < 0.05 * len(degree)


def test_borders_and_nearness_go_both_ways():
    known = set(TRIPLES)
    for head, relation, tail in TRIPLES:
        if relation in SYMMETRIC:
            assert (tail, relation, head) in known


def test_no_relation_is_the_inverse_or_duplicate_of_another():
    pairs: dict[str, set] = {}
    for head, relation, tail in TRIPLES:
        pairs.setdefault(relation, set()).add((head, tail))
    for one, mine in pairs.items():
        for other, theirs in pairs.items():
            if one < other:
                reversed_ = {(tail, head) for head, tail in theirs}
                overlap = max(len(mine & theirs), len(mine & reversed_))
                assert overlap < 0.3 * max(len(mine), len(theirs)), (one, other)


def test_facts_that_a_demo_asks_for_are_there():
    known = set(TRIPLES)
    assert ("France", "has_capital", "Paris") in known
    assert ("France", "neighbour_of", "Spain") in known
    assert ("Brazil", "speaks", "Portuguese") in known
    assert ("Japan", "uses_currency", "Japanese Yen") in known
    assert ("Europe/Paris", "observes", "Central European Time") in known
    assert ("Kenya", "in_continent", "Africa") in known


def test_sources_and_licenses_are_bundled():
    notice = (DATA / "LICENSE-DATA.txt").read_text(encoding="utf-8")
    for word in ("GeoNames", "CC BY 4.0", "UNICODE LICENSE V3", "make_world.py"):
        assert word in notice
