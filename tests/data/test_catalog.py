"""The catalog: its entries are valid, and docs/reference/datasets.md shows the same."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import TypeAdapter, ValidationError

from grash.data.catalog import CATALOG, CatalogEntry, find_entry
from grash.errors import UnknownName

DOC = (Path(__file__).parents[2] / "docs" / "reference" / "datasets.md").read_text(encoding="utf-8")
ENTRIES = pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)


@ENTRIES
def test_an_entry_is_complete(entry):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.name)
    assert entry.entities and entry.relations and entry.n_triples
    assert re.search(r"(19|20)\d\d", entry.citation)
    assert bool(entry.files) != bool(entry.instructions)
    counts = [entry.train, entry.valid, entry.test]
    assert None in counts or sum(counts) == entry.n_triples


@ENTRIES
def test_files_have_safe_names_and_addresses(entry):
    names = [file.name for file in entry.files]
    assert len(set(names)) == len(names)
    for file in entry.files:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", file.name)
        assert not file.name.endswith((".part", ".version"))
        for url in (file.url, *file.mirrors):
            assert urlsplit(url).scheme == "https" and urlsplit(url).netloc
        assert len({file.url, *file.mirrors}) == 1 + len(file.mirrors)
        assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.md5 is None or re.fullmatch(r"[0-9a-f]{32}", file.md5)
        assert file.size is None or file.size > 0


@ENTRIES
def test_plain_files_are_named_as_prepare_expects(entry):
    if entry.form == "files" and entry.files:
        stems = {file.name.split(".")[0] for file in entry.files}
        assert stems == {"train", "valid", "test"} or len(entry.files) == 1


def test_the_two_versions_of_wikidata5m_differ():
    new, old = find_entry("wikidata5m"), find_entry("wikidata5m-v2")
    assert (new.entities, new.relations, new.train) == (4_594_485, 822, 20_614_279)
    assert (old.entities, old.relations, old.train) == (4_818_298, 828, 21_343_681)
    assert {file.name for file in new.files}.isdisjoint(file.name for file in old.files)
    assert "wikidata5m-v2" in new.notes and "wikidata5m" in old.notes


@pytest.mark.parametrize(
    "change",
    [{"licence": "MIT"}, {"form": "tar"}, {"train": "many"}, {"files": [{"url": "https://a"}]}, {"title": None}],
)
def test_a_wrong_entry_is_refused(change):
    entry = {"name": "toy", "title": "Toy", "files": [], "form": "files", "citation": "Nobody 2000"}
    TypeAdapter(CatalogEntry).validate_python(entry)
    with pytest.raises(ValidationError):
        TypeAdapter(CatalogEntry).validate_python({**entry, **change})


def test_names_are_found_in_any_case():
    assert find_entry("FB15k-237") is CATALOG["fb15k-237"]
    assert find_entry("ogbl_biokg") is CATALOG["ogbl-biokg"]


def test_an_unknown_name_gets_suggestions():
    with pytest.raises(UnknownName, match="fb15k-237") as caught:
        find_entry("fb15k237")
    assert "grash datasets" in str(caught.value)


def number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def checksum(entry) -> str:
    for kind in ("sha256", "md5"):
        if entry.files and all(getattr(file, kind) for file in entry.files):
            return kind
    return "–"


def test_the_table_in_the_docs_is_the_catalog():
    expected = [
        [
            entry.name,
            entry.title,
            *map(number, (entry.entities, entry.relations, entry.train, entry.valid, entry.test)),
            number(entry.n_triples),
            number(entry.size),
            checksum(entry),
            entry.license or "–",
            entry.citation,
        ]
        for entry in CATALOG.values()
    ]
    table = DOC.split("## Public datasets")[1].split("### Notes")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    assert rows[2:] == expected


@ENTRIES
def test_notes_and_sources_are_in_the_docs(entry):
    notes, sources = DOC.split("### Notes")[1].split("### Sources")
    assert not entry.notes or f"- **{entry.name}**: {entry.notes}\n" in notes
    for file in entry.files:
        assert f"<{file.url}>" in sources
    if entry.instructions:
        assert entry.instructions in sources
