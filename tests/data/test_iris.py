"""Names of RDF graphs can be given and are shown in short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.cli import main
from grash.data.iris import COMMON, find_id, shorten
from grash.data.vocabulary import Vocabulary
from grash.errors import UnknownName

TURTLE = """
@prefix ex: <http://example.org/> .
@prefix g: <http://example.org/genre/> .
@prefix dbo: <http://dbpedia.org/ontology/> .
ex:Alien dbo:genre g:Horror . ex:Dune dbo:genre g:SciFi . ex:Solaris dbo:genre g:SciFi .
ex:Alien ex:follows ex:Dune . ex:Dune ex:follows ex:Solaris . g:Alien ex:follows ex:Alien .
<http://example.org/a b> ex:follows ex:Dune .
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> grash.Model:
    path = tmp_path_factory.mktemp("rdf") / "films.ttl"
    path.write_text(TURTLE)
    graph = grash.load_dataset(path, n_valid=0, n_test=0)
    assert graph.provenance["prefixes"]["g"] == "http://example.org/genre/"
    return grash.train(graph, dim=4, epochs=1, device="cpu")


@pytest.mark.parametrize("head", ["http://example.org/Dune", "<http://example.org/Dune>", "ex:Dune", "Dune"])
@pytest.mark.parametrize("relation", ["http://dbpedia.org/ontology/genre", "dbo:genre", "genre"])
def test_an_iri_can_be_given_in_full_with_a_prefix_or_by_its_end(model: grash.Model, head: str, relation: str) -> None:
    query = model.query(head, relation, None)
    assert model.entity_name(query.head or 0) == "http://example.org/Dune"
    assert model.relation_name(query.relation or 0) == "http://dbpedia.org/ontology/genre"


def test_an_end_that_several_names_have_is_an_error_with_these(model: grash.Model) -> None:
    with pytest.raises(UnknownName, match="'ex:Alien', 'g:Alien'.*2 names end in it") as caught:
        model.entity_id("Alien")
    assert sorted(caught.value.suggestions) == ["ex:Alien", "g:Alien"]
    with pytest.raises(UnknownName, match="There is no entity named 'Duna'"):
        model.entity_id("Duna")


def test_an_end_that_more_names_have_in_other_case_means_none_of_these() -> None:
    others = [f"http://example.org/{i}/{end}" for i in range(20) for end in ("ALIEN", "xAlien", "alien")]
    wanted = ["http://example.org/films/Alien", "http://example.org/people#Alien"]
    one = Vocabulary.from_names([*others, wanted[1]])
    assert one.name(find_id("Alien", one, {})) == wanted[1]
    with pytest.raises(UnknownName, match="2 names end in it") as caught:
        find_id("Alien", Vocabulary.from_names([wanted[0], *others, wanted[1]]), {})
    assert caught.value.suggestions == wanted
    with pytest.raises(UnknownName, match="20 names end in it"):
        find_id("alien", one, {})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("aA/#:é", max_size=9).map("http://".__add__)), st.text("aA/#é", min_size=1, max_size=3))
def test_names_with_an_end_are_those_of_a_loop(names: list[str], end: str) -> None:
    names = list(dict.fromkeys([*names, end, f"x/{end}"]))
    wanted = [name for name in names if "://" in name and re.split("[#/]", name)[-1] == end]
    assert Vocabulary.from_names(names).iris_ending_in(end) == wanted


def test_answers_are_shown_with_prefixes_and_written_in_full(
    model: grash.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "model")
    words = ["predict", str(tmp_path / "model"), "--head", "ex:Alien", "--relation", "genre", "-k", "99"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "g:Horror" in shown and "http://example.org/genre/" not in shown
    assert "http://example.org/a b" in shown, "a name that is no prefixed name stays as it is"
    assert main([*words, "-o", str(tmp_path / "answers.csv")]) == 0
    assert "http://example.org/genre/Horror" in (tmp_path / "answers.csv").read_text()


def test_the_longest_namespace_wins() -> None:
    prefixes = {**COMMON, "ex": "http://example.org/", "g": "http://example.org/genre/"}
    assert shorten("http://example.org/genre/SciFi", prefixes) == "g:SciFi"
    assert shorten("http://www.w3.org/2002/07/owl#Class", prefixes) == "owl:Class"
    assert shorten("http://example.org/", prefixes) == "http://example.org/" and shorten("ex", prefixes) == "ex"
