"""RDF syntaxes on small files."""

import gzip

import pytest

from grash.data.load import load_dataset
from grash.errors import InputError

NT = """<http://x/a> <http://x/knows> <http://x/b> .
# a comment
<http://x/b> <http://x/knows> _:someone .
<http://x/a> <http://x/age> "42"^^<http://www.w3.org/2001/XMLSchema#integer> .
<http://x/a> <http://x/name> "\\u00C4nne"@de .
"""
NQ = NT.replace(" .\n", " <http://x/graph> .\n").replace("comment <http://x/graph>", "comment")
TTL = """@prefix : <http://x/> .
:a :knows :b ; :age 42 ; :name "Änne"@de .
:b :knows _:someone .
"""
XML = """<?xml version="1.0"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:x="http://x/">
<rdf:Description rdf:about="http://x/a"><x:knows rdf:resource="http://x/b"/><x:age>42</x:age>
<x:name xml:lang="de">Änne</x:name></rdf:Description>
<rdf:Description rdf:about="http://x/b"><x:knows rdf:nodeID="someone"/></rdf:Description>
</rdf:RDF>
"""
FILES = [("g.nt", NT), ("g.nq", NQ), ("g.ttl", TTL), ("g.rdf", XML), ("g.owl", XML), ("g.xml", XML)]


def read(path, **options):
    dataset = load_dataset(path, **{"n_valid": 0, "n_test": 0, **options})
    entities, relations = dataset.entities, dataset.relations
    names = {(entities.name(h), relations.name(r), entities.name(t)) for h, r, t in dataset.train.tolist()}
    return names, dataset


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("name", "content"), FILES)
def test_each_syntax_gives_the_same_graph(tmp_path, name, content, compressed):
    path = tmp_path / (name + (".gz" if compressed else ""))
    path.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    names, dataset = read(path)
    assert names == {("http://x/a", "http://x/knows", "http://x/b"), ("http://x/b", "http://x/knows", "_:someone")}
    assert dataset.provenance["literals_skipped"] == 2


@pytest.mark.parametrize(("name", "content"), FILES[:3])
def test_literals_can_be_kept(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    names, dataset = read(tmp_path / name, literals="keep")
    assert ("http://x/a", "http://x/name", '"Änne"@de') in names
    assert ("http://x/a", "http://x/age", '"42"^^<http://www.w3.org/2001/XMLSchema#integer>') in names
    assert "literals_skipped" not in dataset.provenance


def test_nodes_without_a_label_get_the_same_name_every_time(tmp_path):
    (tmp_path / "g.ttl").write_text("@prefix : <http://x/> .\n:a :knows [ :knows :b ] , [] .\n")
    names, dataset = read(tmp_path / "g.ttl")
    assert {name for row in names for name in row} >= {"_:anonymous1", "_:anonymous2"}
    assert dataset.fingerprint == read(tmp_path / "g.ttl")[1].fingerprint


def test_a_folder_of_ntriples(tmp_path):
    for split, tail in (("train", "b"), ("valid", "c"), ("test", "d")):
        (tmp_path / f"{split}.nt").write_text(f"<http://x/a> <http://x/r> <http://x/{tail}> .\n")
    dataset = load_dataset(tmp_path)
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (1, 1, 1)
    assert list(dataset.entities) == ["http://x/a", "http://x/b", "http://x/c", "http://x/d"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("g.nt", NT + "<http://x/a> <http://x/b> .\n", r"g.nt, line 6: this is not N-Triples \("),
        ("g.nq", "nonsense\n", r"g.nq, line 1: this is not N-Quads"),
        ("g.ttl", TTL + ":a :b\n", r"g.ttl, line \d: this is not Turtle"),
        ("g.rdf", XML[:300], r"g.rdf.*: this is not RDF/XML"),
        (
            "g.nt",
            '<http://x/a> <http://x/b> "only literals" .\n',
            "contains no triples. 1 triple with literals was skipped: keep it",
        ),
    ],
)
def test_a_syntax_error_gets_the_file_and_the_line(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        load_dataset(tmp_path / name)


def test_a_truncated_archive_is_told_from_a_syntax_error(tmp_path):
    (tmp_path / "g.nt.gz").write_bytes(gzip.compress((NT * 500).encode())[:-20])
    with pytest.raises(InputError, match="truncated or damaged gzip file"):
        load_dataset(tmp_path / "g.nt.gz")


def test_an_iri_that_looks_like_a_blank_node_or_a_literal_is_another_name(tmp_path):
    (tmp_path / "g.nt").write_text('<_:a> <a:r> _:a .\n_:a <a:r> <a:b> .\n<_:a> <a:r> "_:a" .\n')
    dataset = load_dataset(tmp_path / "g.nt", n_valid=0, n_test=0, literals="keep")
    assert list(dataset.entities) == ["<_:a>", "_:a", "a:b", '"_:a"']
