"""Every folder layout on small real files, and what is said of paths that are none."""

import gzip

import numpy as np
import pytest

from grash.data.load import load_dataset
from grash.data.readers.source import dataset_name, recognize
from grash.errors import InputError

TRAIN = [("anna", "knows", "bob"), ("bob", "knows", "carl"), ("carl", "likes", "anna"), ("dora", "likes", "dora")]
VALID = [("anna", "likes", "carl")]
TEST = [("bob", "likes", "dora")]
ENTITIES = ["bob", "dora", "anna", "carl"]
RELATIONS = ["likes", "knows"]


def lines(rows, separator="\t"):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def as_ids(rows, order="hrt"):
    ids = [(ENTITIES.index(h), RELATIONS.index(r), ENTITIES.index(t)) for h, r, t in rows]
    return [tuple(row["hrt".index(c)] for c in order) for row in ids]


def named(dataset, split):
    entities, relations = dataset.entities, dataset.relations
    rows = dataset.split(split).tolist()
    return [(entities.name(h), relations.name(r), entities.name(t)) for h, r, t in rows]


def check(dataset):
    assert [named(dataset, split) for split in ("train", "valid", "test")] == [TRAIN, VALID, TEST]


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("suffix", ["", "__txt", "__tsv", "__del", "__TXT", "__txt__gz"])
@pytest.mark.parametrize("valid", ["valid", "dev", "validation", "val"])
def test_a_folder_with_three_files(tmp_path, suffix, valid):
    content = {f"train{suffix}": lines(TRAIN), f"{valid}{suffix}": lines(VALID), f"test{suffix}": lines(TEST)}
    if suffix.endswith("gz"):
        content = {name: gzip.compress(raw.encode()) for name, raw in content.items()}
    check(load_dataset(write(tmp_path, **content)))


def test_a_folder_of_comma_files(tmp_path):
    content = {f"{s}__csv": "head,relation,tail\n" + lines(r, ",") for s, r in SPLITS.items()}
    check(load_dataset(write(tmp_path, **content)))


SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}


def test_files_with_a_common_beginning(tmp_path):
    content = {f"graph_transductive_{s}__txt": lines(r) for s, r in SPLITS.items()}
    check(load_dataset(write(tmp_path, **content, readme__md="hello")))


def test_entities_of_valid_and_test_come_last(tmp_path):
    content = {"train": "a\tr\tb\n", "valid": "z\tr\ta\n", "test": "a\tq\ty\n"}
    dataset = load_dataset(write(tmp_path, **content))
    assert list(dataset.entities) == ["a", "b", "z", "y"]
    assert list(dataset.relations) == ["r", "q"]


LIBKGE = {
    "entity_ids__del": lines(enumerate(ENTITIES)),
    "relation_ids__del": lines(enumerate(RELATIONS)),
    **{f"{s}__del": lines(as_ids(rows)) for s, rows in SPLITS.items()},
}


def test_a_libkge_folder_keeps_its_ids(tmp_path):
    dataset = load_dataset(write(tmp_path, **LIBKGE, train__txt="raw\tfile\there\n"))
    assert recognize(tmp_path).kind == "libkge"
    check(dataset)
    assert list(dataset.entities) == ENTITIES
    assert dataset.train.tolist() == [list(row) for row in as_ids(TRAIN)]


@pytest.mark.parametrize(
    "yaml",
    [
        "dataset:\n  files.train.filename: t.del\n  files.entity_ids.filename: e.del\n  num_entities: 4\n",
        "dataset: {files: {train: {filename: t.del}, entity_ids: {filename: e.del}}}\n",
    ],
)
def test_a_libkge_folder_with_other_file_names(tmp_path, yaml):
    content = dict(LIBKGE)
    content["t__del"], content["e__del"] = content.pop("train__del"), content.pop("entity_ids__del")
    check(load_dataset(write(tmp_path, **content, dataset__yaml=yaml)))


def test_ids_of_a_dictionary_may_be_in_any_order(tmp_path):
    shuffled = lines(sorted(enumerate(ENTITIES), key=lambda pair: pair[1]))
    dataset = load_dataset(write(tmp_path, **{**LIBKGE, "entity_ids__del": shuffled}))
    check(dataset)
    assert list(dataset.entities) == ENTITIES


@pytest.mark.parametrize("by", ["names", "ids"])
@pytest.mark.parametrize("suffix", ["dict", "tsv"])
def test_a_folder_with_dictionaries(tmp_path, by, suffix):
    content = {f"{s}__txt": lines(rows if by == "names" else as_ids(rows)) for s, rows in SPLITS.items()}
    content[f"entities__{suffix}"] = lines(enumerate(ENTITIES))
    content[f"relations__{suffix}"] = lines(enumerate(RELATIONS))
    dataset = load_dataset(write(tmp_path, **content))
    check(dataset)
    assert list(dataset.entities) == ENTITIES
    assert dataset.provenance["triples_by"] == by


def test_dictionaries_may_name_before_they_number(tmp_path):
    content = {f"{s}__txt": lines(rows) for s, rows in SPLITS.items()}
    content["entities__dict"] = lines((name, i) for i, name in enumerate(ENTITIES))
    content["relations__dict"] = lines((name, i) for i, name in enumerate(RELATIONS))
    check(load_dataset(write(tmp_path, **content)))


@pytest.mark.parametrize("separator", ["\t", " "])
def test_an_openke_folder(tmp_path, separator):
    def counted(rows):
        return f"{len(rows)}\n" + lines(rows, separator)

    content = {f"{s}2id__txt": counted(as_ids(rows, "htr")) for s, rows in SPLITS.items()}
    content["entity2id__txt"] = counted([(name, i) for i, name in enumerate(ENTITIES)])
    content["relation2id__txt"] = counted([(name, i) for i, name in enumerate(RELATIONS)])
    dataset = load_dataset(write(tmp_path, **content))
    check(dataset)
    assert list(dataset.relations) == RELATIONS


@pytest.mark.parametrize("named_ids", [True, False])
def test_a_folder_of_arrays(tmp_path, named_ids):
    for split, rows in SPLITS.items():
        np.save(tmp_path / f"{split}.npy", np.array(as_ids(rows), np.int64))
    if named_ids:
        write(
            tmp_path, entities__txt=lines([(e,) for e in [*ENTITIES, "an extra one"]]), relations__txt="likes\nknows\n"
        )
    dataset = load_dataset(tmp_path)
    assert dataset.train.tolist() == [list(row) for row in as_ids(TRAIN)]
    assert (dataset.n_entities, dataset.n_relations) == (5 if named_ids else 4, 2)
    if named_ids:
        check(dataset)
    else:
        assert dataset.entities is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"train__del": "0\t0\t9\n"}, "train.del, line 1: entity 9 does not exist; entity_ids.del has ids 0 to 3"),
        ({"test__del": "0\t0\t1\n0\t2\t1\n"}, "test.del, line 2: relation 2 does not exist"),
        ({"train__del": "0\t0\tbob\n"}, "train.del, line 1: found 'bob', expected an entity id"),
        ({"train__del": "0\t0\t99999999999\n"}, "found '99999999999'"),
        ({"entity_ids__del": "0\ta\n2\tb\n"}, "entity_ids.del has 2 ids, expected each of 0 to 1 once: 1 is missing"),
        ({"entity_ids__del": "0\ta\n0\tb\n"}, "entity_ids.del has 2 ids, .* 0 is given twice"),
        ({"entity_ids__del": "0\ta\n1\n"}, "entity_ids.del, line 2: found 1 column, expected 2"),
        ({"dataset__yaml": "a: [b\n"}, "dataset.yaml cannot be read as YAML"),
    ],
)
def test_a_libkge_folder_that_contradicts_itself(tmp_path, files, sentence):
    with pytest.raises(InputError, match=sentence):
        load_dataset(write(tmp_path, **{**LIBKGE, **files}))


def test_a_name_that_the_dictionary_does_not_know(tmp_path):
    content = {"train__txt": lines(TRAIN) + "anna\tknows\tzoe\n", "test__txt": lines(TEST)}
    content["entities__dict"] = lines(enumerate(ENTITIES))
    content["relations__dict"] = lines(enumerate(RELATIONS))
    with pytest.raises(InputError, match="train.txt, line 5: the entity 'zoe' is not in entities.dict"):
        load_dataset(write(tmp_path, **content))


@pytest.mark.parametrize("count", ["5", "3", "many"])
def test_an_openke_file_that_was_cut_off(tmp_path, count):
    content = {"entity2id__txt": lines([(4,), *((n, i) for i, n in enumerate(ENTITIES))])}
    content["relation2id__txt"] = lines([(2,), *((n, i) for i, n in enumerate(RELATIONS))])
    content["train2id__txt"] = f"{count}\n" + lines(as_ids(TRAIN, "htr"))
    with pytest.raises(InputError, match="number of lines that follow|lines but has 4"):
        load_dataset(write(tmp_path, **content))


def test_fewer_names_than_ids(tmp_path):
    np.save(tmp_path / "train.npy", np.array([[0, 0, 7]]))
    write(tmp_path, entities__txt="a\nb\n")
    with pytest.raises(InputError, match="largest id of entities is 7, .*entities.txt names only 2"):
        load_dataset(tmp_path)


def test_an_empty_line_among_names_is_no_name(tmp_path):
    np.save(tmp_path / "train.npy", np.array([[0, 0, 1]]))
    write(tmp_path, entities__txt="a\n\nb\n")
    with pytest.raises(InputError, match="entities.txt, line 2: the name is empty"):
        load_dataset(tmp_path)


def test_a_missing_path_gets_near_names(tmp_path):
    write(tmp_path, **{"wn18rr__tsv": "a\tb\tc\n"})
    with pytest.raises(
        InputError,
        match="no file or folder .*wn18r.tsv, and no dataset of that name. Did you mean .*wn18rr.tsv.*grash datasets",
    ):
        load_dataset(tmp_path / "wn18r.tsv")
    with pytest.raises(InputError, match="Did you mean .*wn18rr.tsv"):
        load_dataset(tmp_path / "wn18rr")
    with pytest.raises(InputError, match="There is no file or folder"):
        load_dataset(tmp_path / "no" / "such")


def test_a_folder_without_a_graph_lists_the_known_layouts(tmp_path):
    write(tmp_path, notes__md="x")
    write(tmp_path / "inner", train__txt="a\tb\tc\n")
    with pytest.raises(
        InputError, match="It contains inner/, notes.md. .*inner looks like a graph. Looked for: an encoded"
    ):
        load_dataset(tmp_path)


def test_two_train_files_are_not_guessed_between(tmp_path):
    write(tmp_path, train__txt="a\tb\tc\n", train__tsv="a\tb\tc\n")
    with pytest.raises(InputError, match="train.tsv and train.txt, expected one train file"):
        load_dataset(tmp_path)


def test_the_format_option_chooses_between_files(tmp_path):
    write(tmp_path, train__txt="a\tb\tc\n")
    np.save(tmp_path / "train.npy", np.array([[0, 0, 1], [1, 0, 2]]))
    assert len(load_dataset(tmp_path).train) == 1
    assert len(load_dataset(tmp_path, format="npy").train) == 2


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_triples_is_an_input_error(tmp_path, content):
    write(tmp_path, x__tsv=content)
    with pytest.raises(InputError, match="x.tsv (is empty|contains no triples)"):
        load_dataset(tmp_path / "x.tsv")


def test_a_file_whose_one_line_was_taken_as_a_header_says_so(tmp_path):
    write(tmp_path, x__tsv="h\tr\tt\n")
    with pytest.raises(InputError, match="Its one line was taken as a header: if it is a triple, give --no-header"):
        load_dataset(tmp_path / "x.tsv")
    assert len(load_dataset(tmp_path / "x.tsv", header=False).train) == 1


@pytest.mark.parametrize(
    ("header", "example"),
    [("Since,From Node,Link Type,To Node", "'From Node,Link Type,To Node'"), ("a,b,c,d", "0,1,2")],
)
def test_a_file_with_more_columns_shows_them_and_how_to_choose(tmp_path, header, example):
    write(tmp_path, x__csv=f"{header}\n1,a,p,b\n2,b,q,c\n3,c,p,a\n")
    with pytest.raises(InputError) as caught:
        load_dataset(tmp_path / "x.csv")
    assert f"The first line has {header.replace(',', ', ')}: give the columns" in str(caught.value)
    assert str(caught.value).endswith(f"e.g. --columns {example}.")


def test_datasets_are_called_by_their_file_or_folder(tmp_path):
    assert dataset_name(write(tmp_path / "FB15k-237")) == "FB15k-237"
    write(tmp_path, **{"my__graph__tsv__gz": b""})
    assert dataset_name(tmp_path / "my.graph.tsv.gz") == "my.graph"


def test_a_path_that_the_system_refuses(tmp_path):
    with pytest.raises(InputError, match="cannot be read|no file or folder"):
        load_dataset(tmp_path / ("x" * 5000))
