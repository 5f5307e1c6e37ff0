"""The store: whole lines, one study each, merging."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace

import pytest

from grash.data.vocabulary import Vocabulary
from grash.errors import FormatError, InputError
from grash_study.run import missing
from grash_study.store import Cell, Store, cells_on, merge_stores
from study.small_study import made_up, made_up_for, small_pool, small_study


def test_what_was_added_is_there_when_it_is_read_again(tmp_path):
    graphs, store = small_study(tmp_path)
    entries = [made_up(i, "core-order", 1 / 3, i / 10) for i in range(3)]
    store.add(entries)
    again = graphs.pool.store(tmp_path)
    assert list(again.entries.values()) == list(store.entries.values())
    assert [again.entry(i, "core-order", 1 / 3).curve for i in range(3)] == [e.curve for e in entries]
    assert again.find(Cell(1, "core-order", 0.333333333, (0.5, 1.0))) is not None


def test_a_torn_last_line_is_ignored_and_written_over(tmp_path):
    graphs, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    with store.path.open("ab") as file:
        file.write(b'{"kind": "cell", "numb')
    store.release()
    again = graphs.pool.store(tmp_path)
    assert len(again.entries) == 1
    again.add([made_up(1, "core-order", 0.5, 0.2)])
    assert len(graphs.pool.store(tmp_path).entries) == 2
    assert all(line.endswith("}") for line in store.path.read_text().splitlines())


def test_a_line_damaged_in_the_middle_is_refused_with_its_number(tmp_path):
    _, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    lines = store.path.read_text().splitlines()
    store.path.write_text("\n".join([lines[0], lines[1][:30], lines[1]]) + "\n")
    with pytest.raises(FormatError, match="line 2, is damaged"):
        Store.read(store.path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": "x"},
        {"number": 1.5},
        {"technique": "trees"},
        {"fraction": "half"},
        {"fraction": 0},
        {"fraction": float("nan")},
        {"marks": []},
        {"marks": "1.0"},
        {"marks": [0.5, "x"]},
        {"status": "fine"},
        {"status": None},
    ],
    ids=str,
)
def test_a_line_with_a_value_of_another_kind_is_refused_with_its_number(tmp_path, wrong):
    _, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1), made_up(1, "core-order", 0.5, 0.1)])
    first, second, third = store.path.read_text().splitlines()
    changed = json.dumps({**json.loads(second), **wrong})
    store.path.write_text("\n".join([first, changed, third]) + "\n")
    with pytest.raises(FormatError, match=rf"line 2, is damaged \({next(iter(wrong))}="):
        Store.read(store.path)


def test_results_of_another_study_are_refused(tmp_path):
    _, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    other = small_pool(dim=6)
    (tmp_path / f"{other.name}.jsonl").write_bytes(store.path.read_bytes())
    with pytest.raises(InputError, match="dim: 4 there, 6 now"):
        other.store(tmp_path)


def test_a_larger_pool_continues_the_store_of_a_smaller_one(tmp_path):
    _, store = small_study(tmp_path, n=3)
    store.add([made_up(2, "core-order", 0.5, 0.1)])
    graphs, again = small_study(tmp_path, n=5)
    assert len(again.entries) == 1 and again.path == store.path
    assert [c.values for c in graphs.pool.configurations[:3]] == [c.values for c in small_pool(3).configurations]


def test_merging_adds_what_is_missing_once(tmp_path):
    graphs, here = small_study(tmp_path / "here")
    _, there = small_study(tmp_path / "there")
    here.add([made_up(0, "core-order", 0.5, 0.1)])
    there.add([made_up(0, "core-order", 0.5, 0.1), made_up(1, "core-order", 0.5, 0.2)])
    there.add_search({"name": "one", "winner": 3})
    here.release()
    assert merge_stores(tmp_path / "here", tmp_path / "there") == {here.path.name: 2}
    assert merge_stores(tmp_path / "here", tmp_path / "there") == {here.path.name: 0}
    merged = graphs.pool.store(tmp_path / "here")
    assert len(merged.entries) == 2 and merged.searches["one"]["winner"] == 3
    assert merge_stores(tmp_path / "new", tmp_path / "here") == {here.path.name: 3}


def test_a_packed_store_is_merged_as_it_was_and_a_damaged_one_is_named(tmp_path):
    _, there = small_study(tmp_path / "there")
    there.add([made_up(0, "core-order", 0.5, 0.1), made_up(1, "core-order", 0.5, 0.2)])
    there.release()
    packed = tmp_path / "published" / f"{there.path.name}.xz"
    packed.parent.mkdir()
    packed.write_bytes(lzma.compress(there.path.read_bytes()))
    assert merge_stores(tmp_path / "here", packed.parent) == {there.path.name: 2}
    assert (tmp_path / "here" / there.path.name).read_bytes() == there.path.read_bytes()
    assert merge_stores(tmp_path / "here", packed.parent, tmp_path / "there") == {there.path.name: 0}
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"\.jsonl\.xz is damaged .*take it from a copy"):
        merge_stores(tmp_path / "here", packed.parent)


def test_a_folder_without_results_is_no_store(tmp_path):
    with pytest.raises(InputError, match="has no results"):
        merge_stores(tmp_path / "here", tmp_path)


def test_the_entry_that_went_further_counts(tmp_path):
    graphs, store = small_study(tmp_path)
    longer = made_up(0, "core-order", 0.5, 0.3)
    store.add([longer, made_up(0, "core-order", 0.5, 0.1, marks=(0.5,), curve=((0.5, 0.1, 1.0),))])
    assert store.entry(0, "core-order", 0.5) == longer
    assert graphs.pool.store(tmp_path).entry(0, "core-order", 0.5) == longer


def test_a_store_takes_one_writer_at_a_time_and_none_that_has_read_less(tmp_path):
    graphs, store = small_study(tmp_path)
    other, late = graphs.pool.store(tmp_path), graphs.pool.store(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    with pytest.raises(InputError, match="is being written by another process"):
        other.add([made_up(1, "core-order", 0.5, 0.1)])
    store.release()
    with pytest.raises(InputError, match="has changed since it was read"):
        late.add([made_up(2, "core-order", 0.5, 0.1)])
    late.release()
    again = graphs.pool.store(tmp_path)
    again.add([made_up(3, "core-order", 0.5, 0.1)])
    assert {e.number for e in graphs.pool.store(tmp_path).entries.values()} == {0, 3}


def test_a_store_that_is_gone_holds_its_file_no_longer(tmp_path):
    graphs, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    del store
    graphs.pool.store(tmp_path).hold()


def test_no_file_is_made_before_there_is_a_result(tmp_path):
    _, store = small_study(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    store.add([])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("left", [b"", b"\n", b'{"kind": "stu', b'\n{"kind'])
def test_an_incomplete_first_line_is_replaced(tmp_path, left):
    pool = small_pool()
    path = tmp_path / f"{pool.name}.jsonl"
    path.write_bytes(left)
    store = pool.store(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    store.release()
    assert len(pool.store(tmp_path).entries) == 1
    path.write_bytes(left)
    small_study(tmp_path / "other")[1].add([made_up(1, "core-order", 0.5, 0.1)])
    assert merge_stores(tmp_path, tmp_path / "other") == {path.name: 1}
    (tmp_path / "other" / path.name).write_bytes(left)
    assert merge_stores(tmp_path, tmp_path / "other") == {path.name: 0}


def test_the_error_of_a_damaged_first_line_explains_where_to_find_it(tmp_path):
    pool = small_pool()
    (tmp_path / f"{pool.name}.jsonl").write_text('{"kind": "cell"}\n')
    with pytest.raises(FormatError, match="take the first line from a copy"):
        pool.store(tmp_path)


def test_trainings_with_other_marks_add_up_and_nothing_is_trained_for_ever(tmp_path):
    _, store = small_study(tmp_path)
    first, second = cells_on("core-order", 0.5, [0], also=(0.3,)), cells_on("core-order", 0.5, [0], also=(0.4,))
    short = cells_on("core-order", 0.5, [0], upto=0.2, also=(0.13,))
    for cells in (first, second, short):
        assert missing(cells, store)
        store.add(made_up_for(c, 0.1) for c in cells)
        assert not missing(cells, store)
    assert not missing([*first, *second, *short], Store.read(store.path))
    assert missing([*first, *second, *short], store) == {}


def test_an_error_is_final_when_it_comes_again(tmp_path):
    _, store = small_study(tmp_path)
    (cell,) = cells_on("core-order", 0.5, [0])
    for left in (1, 0):
        store.add([made_up_for(cell, 0.1, status="error", curve=())])
        assert len(missing([cell], store)) == left == len(missing([cell], Store.read(store.path)))


def test_names_of_entities_make_no_other_study(tmp_path):
    graphs, store = small_study(tmp_path)
    store.add([made_up(0, "core-order", 0.5, 0.1)])
    store.release()
    data = graphs.pool.dataset
    named = replace(
        data,
        entities=Vocabulary.from_names([f"e{i}" for i in range(data.n_entities)]),
        relations=Vocabulary.from_names([f"r{i}" for i in range(data.n_relations)]),
    )
    assert named.fingerprint != data.fingerprint and named.unnamed_fingerprint == data.unnamed_fingerprint
    assert len(replace(graphs.pool, dataset=named).store(tmp_path).entries) == 1
