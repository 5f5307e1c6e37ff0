"""What a command reports of a source: nothing is read wrongly, or left out, without a word."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from grash.data.load import load_dataset
from grash.errors import ConfigError, InputError
from large_sources import check_same, large
from small_graph import grash


def triples_of(path: Path, **options) -> list[tuple[str, str, str]]:
    data = load_dataset(path, n_valid=0, n_test=0, **options)
    assert data.entities is not None and data.relations is not None
    return [(data.entities.name(h), data.relations.name(r), data.entities.name(t)) for h, r, t in data.train.tolist()]


@pytest.mark.parametrize(
    "text",
    [
        'u,p,"one; two; three"\nw,p,ok\nx,p,"a; b"\n',
        'u,p,"one; two; three"\r\nw,p,"say ""a; b; c"""\r\n',
        '\ufeff"u","p","tab\tand; semicolon, comma"\n"w","p","two\nlines; here; too"\n',
        "u,p,one; two; three\nw,p,ok; fine; too\nx,p,y\nz,p,y\n",
        "u\tp\tone, two, three; four | five\nw\tp\ta, b, c, d\n",
        'a;p;"x, y, z"\nb;p;"x; y, z"\n',
    ],
)
def test_separators_in_free_text_do_not_beat_a_constant_number_of_columns(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.csv").write_bytes(text.encode())
    separator = "\t" if "\tp\t" in text else ";" if text.startswith("a;") else ","
    rows = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True), delimiter=separator)
    assert triples_of(tmp_path / "g.csv") == [tuple(row) for row in rows]


def test_semicolons_inside_quotes_leave_the_commas_of_a_wide_file(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    path.write_text('a,b,c,d\nu,p,v,"one; two; three"\nw,p,v,ok\n')
    done = grash("describe", path)
    assert done.code == 2
    assert "line 1: found 4 columns, expected 3 (separator guessed: commas)" in done.err
    assert triples_of(path, columns=(0, 1, 2), header=True) == [("u", "p", "v"), ("w", "p", "v")]


WIDE = (
    'id,title,action,user\n1,Jaws,likes,a\n2,The Good, the Bad,likes,d\n3,"Me, Myself",likes,b\n4,Up,,c\n5,Up,likes,c\n'
)


def test_a_line_of_another_width_is_an_error_with_columns_too(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(WIDE)
    done = grash("prepare", tmp_path / "g.csv", "-o", tmp_path / "out", "--header", "--columns", "1,2,3")
    assert done.code == 2 and not (tmp_path / "out").exists()
    assert f"{tmp_path / 'g.csv'}, line 3: found 5 columns, expected 4 (separator guessed: commas)." in done.err
    assert (
        "In all, 2 lines cannot be read: line 3: found 5 columns, expected 4; line 5: the relation is empty."
        in done.err
    )
    assert "--bad-lines skip" in done.err and "with --columns" not in done.err


def test_bad_lines_are_left_out_with_their_number(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(WIDE)
    options = ("--columns", "title,ACTION,user", "--bad-lines", "skip", "--n-valid", "0", "--n-test", "0")
    done = grash("prepare", tmp_path / "g.csv", "-o", tmp_path / "out", *options)
    assert done.code == 0, done.err
    assert "2 lines were left out: line 3: found 5 columns, expected 4; line 5: the relation is empty." in done.err
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["provenance"]["bad_lines_skipped"] == 2
    for source, more in ((tmp_path / "out", ()), (tmp_path / "g.csv", options)):
        assert "2 lines that are not triples were left out." in grash("describe", source, *more).out
        assert json.loads(grash("describe", source, *more, "--json").out)["reading"]["bad_lines_skipped"] == 2
    found = triples_of(tmp_path / "g.csv", columns="title,action,user", bad_lines="skip")
    assert found == [("Jaws", "likes", "a"), ("Me, Myself", "likes", "b"), ("Up", "likes", "c")]


def test_bad_lines_are_listed_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bad = [f"x{i}\tr\n" if i % 2 else f'x{i}\t"r\ty\tz\n' for i in range(100)]
    Path("g.tsv").write_text("a\tr\tb\n" + "".join(bad) + "b\tr\tc\n")
    done = grash("prepare", "g.tsv", "-o", "out", "--bad-lines", "list")
    assert done.code == 2 and not Path("out").exists()
    assert "In all, 100 lines cannot be read: lines 2, 4, 6, 8, 10: found 4 columns, expected 3; lines 3, 5" in done.err
    assert "9, 11: found 2 columns, expected 3; …" in done.err
    assert "12" not in done.err.partition("In all")[2].partition("…")[0]
    assert f"{tmp_path / 'g.tsv.bad-lines.txt'} lists all of them." in done.err
    listed = [line.split("\t", 2) for line in Path("g.tsv.bad-lines.txt").read_text().splitlines()]
    assert [int(number) for number, _, _ in listed] == list(range(2, 102))
    assert [f"{text}\n" for _, _, text in listed] == bad
    assert listed[1][1] == "found 2 columns, expected 3"


@pytest.mark.parametrize("text", ['a,r,b\n"x,r,c\nb,r,c\nc,r,a\n', 'a,r,b\nx,"r"s,c\nb,r,c\nc,r,a\n'])
def test_after_a_wrong_quote_the_next_line_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.csv").write_text(text)
    wanted = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a")]
    assert triples_of(tmp_path / "g.csv", bad_lines="skip") == wanted


@pytest.mark.parametrize("n_valid", [0, 3])
def test_a_source_larger_than_memory_leaves_out_the_same_lines(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, n_valid: int
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"node {i % 17},r{i % 3},node {i * i % 23}" for i in range(300)]
    rows[7::10] = ["two,columns", '"quote, never, closed', "a,,b", 'x,"y"z,w'] * 7 + ["a,b,c,d", "x"]
    Path("g.csv").write_text("\n".join(rows))
    for how in ("error", "list"):
        with pytest.raises(InputError, match="In all, 30 lines cannot be read: lines 8, 48, 88: ") as at_once:
            load_dataset("g.csv", bad_lines=how)
        with pytest.raises(InputError) as in_parts:
            large(Path("g.csv"), Path("out"), bad_lines=how)
        assert str(in_parts.value) == str(at_once.value) and not Path("out.spill").exists()
    assert len(Path("g.csv.bad-lines.txt").read_text().splitlines()) == 30
    wanted = load_dataset("g.csv", bad_lines="skip", n_valid=n_valid)
    assert wanted.provenance["bad_lines_skipped"] == 30
    check_same(large(Path("g.csv"), Path("out"), bad_lines="skip", n_valid=n_valid), wanted)


def test_a_split_of_ids_beside_a_split_of_names_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\tlikes\tb\nb\tlikes\tc\n")
    np.save(tmp_path / "valid.npy", np.zeros((1, 3), np.int32))
    with pytest.raises(InputError, match=r"valid\.npy is of the format npy, which cannot be mixed with text: give"):
        load_dataset(tmp_path)


def test_bad_lines_are_for_text(tmp_path: Path) -> None:
    (tmp_path / "g.nt").write_text("<a:a> <a:r> <a:b> .\n")
    with pytest.raises(ConfigError, match="bad_lines='skip' is for text files"):
        load_dataset(tmp_path / "g.nt", bad_lines="skip")
    with pytest.raises(ConfigError, match="bad_lines='drop' is unknown"):
        load_dataset(tmp_path / "g.nt", bad_lines="drop")


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    path.write_text("id,Start_Entity,pred,end_entity\n1,a,r,b\n2,b,r,c\n")
    assert triples_of(path, columns="start_entity,PRED,End_Entity") == [("a", "r", "b"), ("b", "r", "c")]
    assert triples_of(path, columns="1,2,3", header=True) == [("a", "r", "b"), ("b", "r", "c")]
    done = grash("describe", path, "--columns", "start,pred,end_entity")
    assert done.code == 2
    assert "has no column 'start' in its first line (id, Start_Entity, pred, end_entity)" in done.err
    assert "names, which need a header" in grash("describe", path, "--columns", "a,b,c", "--no-header").err


def test_a_header_of_other_words_is_no_triple(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("user,action,item\n" + "".join(f"{i},{i % 3},{i + 5}\n" for i in range(30)))
    done = grash("describe", tmp_path / "g.csv")
    assert "30 triples" not in done.out and "a header" in done.out
    assert len(triples_of(tmp_path / "g.csv")) == 30
    (tmp_path / "g.csv").write_text("movie,rel,thing\nJaws,by,Steven\nET,with,Drew\n")
    done = grash("describe", tmp_path / "g.csv")
    assert done.code == 2
    assert (
        "the first line (movie, rel, thing) may be a header or a triple. With --header the first triple "
        "is (Jaws, by, Steven); with --no-header it is (movie, rel, thing)." in done.err
    )
    assert grash("describe", tmp_path / "g.csv", "--header").code == 0


def test_a_header_of_another_width_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("id,user,action,item\n1,a,r,b\n2,b,r,c\n")
    done = grash("describe", tmp_path / "g.csv", "--header")
    assert done.code == 2 and "the header has 4 columns (id, user, action, item), expected 3. Choose three" in done.err
    (tmp_path / "g.csv").write_text("user,action,item,\na,r,b\nb,r,c\n")
    assert "the header has 4 columns" in grash("describe", tmp_path / "g.csv", "--header").err


def test_skipped_literals_are_reported_by_prepare_and_describe(tmp_path: Path) -> None:
    path = tmp_path / "g.nt"
    path.write_text("<a:a> <a:r> <a:b> .\n<a:b> <a:r> <a:a> .\n" + '<a:a> <a:name> "Ann" .\n' * 3)
    done = grash("prepare", path, "-o", tmp_path / "out")
    assert "3 triples with literals were skipped" in done.err
    for source in (path, tmp_path / "out"):
        assert "3 triples with literals were skipped; keep them with --literals keep." in grash("describe", source).out
        assert json.loads(grash("describe", source, "--json").out)["reading"]["literals_skipped"] == 3
