"""Interner and vocabulary against a dict; suggestions against a plain edit distance; damaged files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.vocabulary import SLACK, Interner, Vocabulary, hash_name
from grash.errors import FormatError, UnknownName

ODD_NAMES = ["", " ", 'a"b', "'", "ünï", "日本語", "\x00", "x" * 5000, "a b", "http://x.org/#y", "𝄞", "\ufeff"]
names_of_any_kind = st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["a", "b", "aaaaaaaa", "aaaaaaaab"])))


@settings(deadline=None)
@given(names_of_any_kind)
def test_the_interner_agrees_with_a_dict(names):
    names = [n.encode("utf-8", "replace").decode() for n in names]
    twin: dict[str, int] = {}
    expected = [twin.setdefault(name, len(twin)) for name in names]
    interner = Interner()
    half = len(names) // 2
    ids = np.concatenate((interner.add(names[:half]), interner.add(names[half:])))
    assert ids.tolist() == expected
    assert list(Vocabulary.from_interner(interner)) == list(twin)


def test_the_interner_agrees_with_a_dict_while_its_tables_grow():
    random = np.random.default_rng(0)
    names = [f"name {i}" for i in random.integers(0, 30_000, 100_000)]
    twin: dict[str, int] = {}
    expected = [twin.setdefault(name, len(twin)) for name in names]
    interner = Interner()
    assert interner.add(names).tolist() == expected
    vocabulary = Vocabulary.from_interner(interner)
    assert all(vocabulary.find(name) == i for name, i in twin.items())


def test_names_with_the_same_hash_are_told_apart(monkeypatch):
    """Correctness rests on bytes alone: with all hashes equal, only the speed is lost."""
    from grash.data import vocabulary as intern

    def all_equal(buffer, starts, lengths):
        return intern.HashedFields(buffer, starts, lengths, np.full(len(starts), 7, np.uint32))

    monkeypatch.setattr(intern, "hashed_fields", all_equal)
    names = [f"{i % 700}" for i in range(2000)]
    twin: dict[str, int] = {}
    expected = [twin.setdefault(name, len(twin)) for name in names]
    assert Interner().add(names).tolist() == expected


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(0, 9))
def test_the_hash_is_that_of_its_plain_twin(raw, shift):
    buffer = np.frombuffer(bytes(shift) + raw + b"\xff" * SLACK, np.uint8)
    assert int(hash_name(buffer, shift, len(raw))) == plain_hash(raw)


def plain_hash(raw: bytes) -> int:
    whole = 2**64 - 1
    step, last = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
    h = 0x2545F4914F6CDD1D ^ (len(raw) * last & whole)
    words = [raw[i : i + 8] for i in range(0, len(raw) & ~7, 8)] + [raw[len(raw) & ~7 :]]
    for word in words:
        h = ((h ^ int.from_bytes(word, "little")) * step) & whole
        h ^= h >> 32
    return (h * last & whole) >> 32


def test_a_saved_index_stays_readable():
    """The hash is part of the file format: these values may only change with its version."""
    assert [plain_hash(raw) for raw in (b"", b"Paris", b"http://x.org/Q42")] == [2016870723, 4163648079, 1632878752]


def test_a_vocabulary_survives_saving_with_odd_names(tmp_path):
    vocabulary = Vocabulary.from_names(ODD_NAMES, kind="entity")
    vocabulary.save(tmp_path, "entities")
    loaded = Vocabulary.load(tmp_path, "entities")
    assert loaded.kind == "entity"
    assert list(loaded) == ODD_NAMES
    assert [loaded.find(name) for name in ODD_NAMES] == list(range(len(ODD_NAMES)))
    assert loaded.find("absent") is None
    assert loaded.names(np.array([1, 0])) == [ODD_NAMES[1], ODD_NAMES[0]]


def test_an_empty_vocabulary_can_be_saved_and_asked(tmp_path):
    Vocabulary.from_names([]).save(tmp_path, "relations")
    loaded = Vocabulary.load(tmp_path, "relations")
    assert len(loaded) == 0
    assert loaded.find("x") is None
    assert loaded.suggest("x") == []


def test_a_repeated_name_is_found_under_its_first_id():
    vocabulary = Vocabulary.from_names(["a", "b", "a"])
    assert len(vocabulary) == 3
    assert vocabulary.find("a") == 0
    assert vocabulary.name(2) == "a"


def test_an_unknown_name_gets_suggestions():
    vocabulary = Vocabulary.from_names(["Germany", "France", "Georgia"], kind="entity")
    with pytest.raises(UnknownName, match="There is no entity named 'germny'. Did you mean 'Germany'"):
        vocabulary.id("germny")
    assert vocabulary.id("France") == 1


RELATIONS = ["located_in", "near", "speaks", "neighbour_of", "has_capital"]


@pytest.mark.parametrize(
    ("tried", "meant"),
    [("locatd", "located_in"), ("neighbor", "neighbour_of"), ("capitol", "has_capital"), ("CAPITAL", "has_capital")],
)
def test_a_misspelled_beginning_or_part_of_a_name_gets_a_suggestion(tried, meant):
    assert Vocabulary.from_names(RELATIONS).suggest(tried) == [meant]


def test_last_words_and_beginnings_with_an_error_are_suggested_among_many_names():
    many = Vocabulary.from_names(["United Kingdom", *(f"entity {i}" for i in range(2000))])
    for tried in ("kingdom", "unted king"):
        assert many.suggest(tried) == ["United Kingdom"]
    assert many.suggest("kingfisher") == []


def test_few_names_are_listed_if_none_is_near():
    relations = Vocabulary.from_names(RELATIONS, kind="relation")
    with pytest.raises(UnknownName, match=r"named 'xyz'\. There are: located_in, near, .*, has_capital\.$"):
        relations.id("xyz")
    assert str(Vocabulary.from_names(map(str, range(13)), kind="relation").unknown("xyz")).endswith("named 'xyz'.")
    assert str(Vocabulary.from_names([]).unknown("xyz")).endswith("named 'xyz'.")


@pytest.mark.parametrize("i", [-1, 2, 10**12])
def test_an_id_out_of_range_is_an_error(i):
    with pytest.raises(UnknownName, match="Ids go from 0 to 1"):
        Vocabulary.from_names(["a", "b"]).name(i)


def test_suggestions_go_from_case_over_typing_errors_to_iri_ends_and_beginnings():
    names = ["Parisian", "http://x.org/resource/Paris", "Pariss", "Zebra", "PARIS"]
    assert Vocabulary.from_names(names).suggest("paris", 4) == [
        "PARIS",
        "Pariss",
        "http://x.org/resource/Paris",
        "Parisian",
    ]
    assert Vocabulary.from_names(names).suggest("qqqqqqq") == []


def plain_distance(a: bytes, b: bytes) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("abC", min_size=1, max_size=9), min_size=1, max_size=12, unique=True),
    st.text("abc", min_size=1, max_size=8),
)
def test_the_nearest_name_has_the_smallest_edit_distance(names, query):
    limit = min(4, max(1, len(query) // 3))
    lowered = [name.lower().encode() for name in names]
    distances = [plain_distance(name, query.encode()) for name in lowered]
    within = [d for d in distances if d <= limit]
    vocabulary = Vocabulary.from_names(names)
    found = [vocabulary.id(name) for name in vocabulary.suggest(query, len(names))]
    edits = [distances[i] for i in found if distances[i] <= limit and not lowered[i].startswith(query.encode())]
    assert edits == sorted(edits)
    assert {i for i, d in enumerate(distances) if d <= limit} <= set(found)
    if within and min(within) == 0:
        assert distances[found[0]] == 0


def damage(path, change):
    array = np.load(path)
    np.save(path, change(array))


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("names", lambda a: a[:-1], "its offsets do not match"),
        ("offsets", lambda a: a[::-1].copy(), "offsets"),
        ("offsets", lambda a: np.array([0, 5, 1, *a[3:]]), "out of order"),
        ("offsets", lambda a: a.astype(np.int32), "expected int64 of n"),
        ("offsets", lambda a: a[:0], "damaged"),
        ("index", lambda a: a[:3], "not a power of two"),
        ("index", lambda a: a[:0], "not a power of two"),
    ],
)
def test_a_damaged_vocabulary_is_recognized(tmp_path, file, change, sentence):
    Vocabulary.from_names(["a", "bc", "d"]).save(tmp_path, "entities")
    damage(tmp_path / f"entities.{file}.npy", change)
    with pytest.raises(FormatError, match=sentence):
        Vocabulary.load(tmp_path, "entities")


@pytest.mark.parametrize("file", ["names", "offsets", "index"])
def test_a_truncated_or_missing_file_is_recognised(tmp_path, file):
    Vocabulary.from_names(["a", "bc", "d"]).save(tmp_path, "entities")
    path = tmp_path / f"entities.{file}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="damaged"):
        Vocabulary.load(tmp_path, "entities")
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="damaged"):
        Vocabulary.load(tmp_path, "entities")
    path.unlink()
    with pytest.raises(FormatError, match="missing"):
        Vocabulary.load(tmp_path, "entities")


def test_an_index_that_points_outside_is_recognised_when_it_is_used(tmp_path):
    Vocabulary.from_names(["a", "bc", "d"]).save(tmp_path, "entities")
    damage(tmp_path / "entities.index.npy", lambda a: np.full_like(a, 1_000_000))
    with pytest.raises(FormatError, match="points outside"):
        Vocabulary.load(tmp_path, "entities").find("a")


def test_names_that_are_no_text_are_recognised_when_they_are_read(tmp_path):
    Vocabulary.from_names(["a", "bc"]).save(tmp_path, "entities")
    damage(tmp_path / "entities.names.npy", lambda a: np.full_like(a, 0xFF))
    with pytest.raises(FormatError, match="not UTF-8"):
        Vocabulary.load(tmp_path, "entities").name(1)


@settings(deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=30), st.data())
def test_a_subset_has_its_own_ids(names, data):
    ids = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=20, unique=True).map(sorted))
    subset = Vocabulary.from_names(names, kind="relation").subset(np.array(ids, np.int32))
    chosen = [names[i] for i in ids]
    assert list(subset) == chosen and subset.kind == "relation"
    assert [subset.find(name) for name in chosen] == [chosen.index(name) for name in chosen]
    assert subset.find("not there at all") is None


@settings(deadline=None)
@given(names_of_any_kind, names_of_any_kind)
def test_an_extended_vocabulary_equals_one_of_all_names(before, more):
    before, more = ([n.encode("utf-8", "replace").decode() for n in names] for names in (before, more))
    extended, whole = (
        Vocabulary.from_names(before, kind="relation").extended(more),
        Vocabulary.from_names(before + more, kind="relation"),
    )
    assert list(extended) == before + more and extended.kind == "relation"
    assert all(np.array_equal(a, b) for a, b in zip(extended.arrays, whole.arrays))
    assert [extended.find(name) for name in before + more] == [whole.find(name) for name in before + more]


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20, unique=True), st.text(max_size=30))
def test_names_are_found_with_and_without_a_compiled_loop(names: list[str], other: str) -> None:
    names = [name.encode("utf-8", "ignore").decode() for name in names]
    vocabulary = Vocabulary.from_names(names)
    first = {name: names.index(name) for name in names}
    for lookups in (0, 1_000_000):
        vocabulary._lookups = lookups
        assert [vocabulary.find(name) for name in names] == [first[name] for name in names]
        vocabulary._lookups = lookups
        assert vocabulary.find(other + "?") == first.get(other + "?")
