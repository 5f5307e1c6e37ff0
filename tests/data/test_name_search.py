"""Search of names as a person types, against a plain loop, and with the errors that people make."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.name_search import NameSearch, _bits_of, _distance, _explained, _fast_distance, _pair_places
from grash.data.vocabulary import Vocabulary

NAMES = ["United Kingdom", "Kingdom of Fife", "Peru", "Perth", "São Paulo", "Zürich", "New_York", "New Yorkshire",
         "Łódź", "http://example.org/resource/Lima_(city)", "Αθήνα", "Москва", "東京", "a", ""]  # fmt: skip


def found(text: str, k: int = 5, names: list[str] = NAMES, weights: list[int] | None = None) -> list[str]:
    search = NameSearch(Vocabulary.from_names(names), np.array(weights or [1] * len(names)))
    try:
        return [names[i] for i in search(text, k)]
    finally:
        search.close()


@pytest.mark.parametrize(
    ("text", "first"),
    [("united k", "United Kingdom"), ("KING", "Kingdom of Fife"), ("sao", "São Paulo"), ("zuerich", "Zürich"),
     ("zurich", "Zürich"), ("new y", "New_York"), ("lima", NAMES[9]), ("city", NAMES[9]), ("αθηνα", "Αθήνα"),
     ("МОС", "Москва"), ("東", "東京"), ("peru", "Peru"), ("per", "Peru"), ("kindgom", "Kingdom of Fife"),
     ("untied kigdom", "United Kingdom"), ("Pery", "Peru"), ("xyz", None), ("", None), ("  -/ ", None)],
)  # fmt: skip
def test_what_people_type_is_found(text: str, first: str | None) -> None:
    names = found(text)
    assert (names[0] if names else None) == first


def test_a_whole_name_comes_first_and_then_those_with_more_weight() -> None:
    names = ["Lima Norte", "Lima", "San Lima", "Limassol"]
    assert found("lima", names=names, weights=[5, 1, 100, 9]) == ["Lima", "Limassol", "Lima Norte", "San Lima"]
    assert found("lima", k=2, names=names, weights=[5, 1, 100, 9]) == ["Lima", "Limassol"]


def plain(text: str, names: list[str], weights: list[int], k: int) -> list[int]:
    """Words by splitting, and beginnings by startswith."""
    fold = lambda s: " ".join(unicodedata.normalize("NFKD", s).casefold().replace("_", " ").split())  # noqa: E731
    query, ranked = fold(text), []
    for i, name in enumerate(names):
        words = fold(name).split(" ")
        begins = [j for j in range(len(words)) if " ".join(words[j:]).startswith(query)]
        if query and begins:
            cost = 0 if fold(name) == query else 1 if begins[0] == 0 else 2
            ranked.append((cost, -weights[i], i))
    return [i for *_, i in sorted(ranked)][:k]


@settings(max_examples=150)
@given(
    st.lists(st.text("abAB _", max_size=7), min_size=1, max_size=30), st.text("abAB _", max_size=4), st.integers(1, 8),
    st.data(),
)  # fmt: skip
def test_beginnings_are_those_of_a_plain_loop(names: list[str], text: str, k: int, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)))
    wanted = plain(text, names, weights, k)
    search = NameSearch(Vocabulary.from_names(names), np.array(weights))
    got = search(text, k).tolist()
    search.close()
    if wanted:
        assert got == wanted


@given(st.text(max_size=300), st.lists(st.text(max_size=600), max_size=5))
@settings(max_examples=60)
def test_any_text_can_be_searched_in_any_names(text: str, names: list[str]) -> None:
    names = [n.encode("utf-8", "ignore").decode() for n in names]
    search = NameSearch(Vocabulary.from_names(names), np.ones(len(names)))
    assert len(search(text, 3)) <= 3
    search.close()


@settings(max_examples=300, deadline=None)
@given(st.text("abc ", min_size=2, max_size=64), st.text("abc ", min_size=1, max_size=70), st.integers(1, 2), st.data())
def test_the_fast_distance_is_that_of_a_table(query: str, name: str, limit: int, data: st.DataObject) -> None:
    letters, wanted = (np.frombuffer(text.encode(), np.uint8) for text in (name, query))
    start = data.draw(st.integers(0, len(name) - 1))
    places = np.zeros(256, np.uint64)
    for j, letter in enumerate(wanted):
        places[letter] |= np.uint64(1) << np.uint64(j)
    table = _distance(letters, start, len(letters), wanted, limit, np.empty((3, len(wanted) + 1), np.int64))
    fast = _fast_distance(letters, start, len(letters), len(wanted), limit, places)
    assert min(fast, limit + 1) == min(table, limit + 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcdef ", min_size=4, max_size=9), min_size=1, max_size=8), st.text("abcdef", min_size=4))
def test_the_letters_of_a_name_lose_no_match_with_errors(names: list[str], text: str) -> None:
    names = sorted(set(names))
    index, query = NameSearch(Vocabulary.from_names(names), np.ones(len(names), np.int64)), text[:9].encode()
    found = [index._scan(np.frombuffer(query, np.uint8), 9, errors).tolist() for errors in (1, 2)]
    index._letters[:] = 0xFFFFFFFF  # leave out no name
    assert found == [index._scan(np.frombuffer(query, np.uint8), 9, errors).tolist() for errors in (1, 2)]


def plain_distance(query: str, name: str) -> int:
    """The smallest edit distance of the query to a beginning of the name, with swaps, from a whole table."""
    rows = [list(range(len(query) + 1))]
    for i, letter in enumerate(name, 1):
        row = [i]
        for j, wanted in enumerate(query, 1):
            row.append(min(rows[-1][j - 1] + (letter != wanted), rows[-1][j] + 1, row[-1] + 1))
            if i > 1 and j > 1 and letter == query[j - 2] and name[i - 2] == wanted:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return min(row[-1] for row in rows)


@settings(max_examples=1000, deadline=None)
@given(st.text("abcd", min_size=4, max_size=12), st.data())
def test_what_errors_explain_holds_for_every_name_with_so_few(name: str, data: st.DataObject) -> None:
    query = list(name)
    for _ in range(data.draw(st.integers(0, 2))):
        i, letter = data.draw(st.integers(0, len(query) - 1)), data.draw(st.sampled_from("abcdx"))
        kind = data.draw(st.sampled_from(["wrong", "missing", "additional", "swap"]))
        if kind == "wrong":
            query[i] = letter
        elif kind == "missing" and len(query) > 1:
            del query[i]
        elif kind == "additional":
            query.insert(i, letter)
        else:
            query[i : i + 2] = query[i : i + 2][::-1]
    errors = plain_distance("".join(query), name)
    low, high = _bits_of(np.frombuffer(name.encode(), np.uint8))
    pairs = _pair_places(np.frombuffer("".join(query).encode(), np.uint8))
    assert errors > 2 or _explained(pairs, low, high, errors)


def test_errors_do_not_explain_pairs_that_are_missing_in_too_many_places() -> None:
    low, high = _bits_of(np.frombuffer(b"kingdom", np.uint8))
    for query, errors in (("kingdom", 0), ("kindgom", 1), ("kqngqom", 2)):
        pairs = _pair_places(np.frombuffer(query.encode(), np.uint8))
        assert _explained(pairs, low, high, errors) and not (errors and _explained(pairs, low, high, errors - 1))
