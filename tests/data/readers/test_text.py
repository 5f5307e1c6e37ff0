"""Text files of triples: dialects, options and errors."""

import bz2
import csv
import gzip
import io
import lzma
import sys
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grash.data.load import load_dataset
from grash.data.readers import text
from grash.data.readers.source import SourceOptions
from grash.data.readers.text import TextSource, guess_dialect, read_text_file, read_triples
from grash.data.vocabulary import Encoder
from grash.errors import ConfigError, InputError

ABC = [("a", "r", "b"), ("b", "s", "c")]


def read(content, **options):
    """The triples of a text, as names."""
    raw = content if isinstance(content, bytes) else content.encode()
    encoder = Encoder()
    source = TextSource(io.BytesIO(raw), Path("graph.txt"), SourceOptions(**options))
    return named(read_stream(source, encoder), encoder)


def read_stream(source, encoder):
    return read_triples(source, source.guess_dialect(), lambda fields: encoder.encode_fields(*fields.groups))


def named(triples, encoder):
    from grash.data.vocabulary import Vocabulary

    entities, relations = (Vocabulary.from_interner(i) for i in (encoder.entities, encoder.relations))
    return [(entities.name(h), relations.name(r), entities.name(t)) for h, r, t in triples.tolist()]


@pytest.mark.parametrize(
    "content",
    [
        "a\tr\tb\nb\ts\tc\n",
        "a\tr\tb\nb\ts\tc",
        "a\tr\tb\r\nb\ts\tc\r\n",
        "a\tr\tb\r\nb\ts\tc\r",
        "\n\na\tr\tb\n\r\n\nb\ts\tc\n\n",
        "\ufeffa\tr\tb\nb\ts\tc\n",
        "a,r,b\nb,s,c\n",
        '"a","r",b\r\nb,"s","c"\r\n',
        "a;r;b\nb;s;c\n",
        "a|r|b\nb|s|c\n",
        "a r b\nb s c\n",
        "  a  r \t b  \n\nb s c \r\n",
        "head\trelation\ttail\na\tr\tb\nb\ts\tc\n",
        "Subject,Predicate,Object\na,r,b\nb,s,c\n",
        "s p o\na r b\nb s c\n",
        "source,target,type\na,b,r\nb,c,s\n",
        "from\tto\trelation\na\tb\tr\nb\tc\ts\n",
        "\nhead\trelation\ttail\na\tr\tb\nb\ts\tc\n",
        "   \na\tr\tb\n \t \r\n\t\t\nb\ts\tc\n  ",
        "a,r,b\n  \nb,s,c\n\t\n",
        "a r b\n   \nb s c\n \t",
        " \nhead\trelation\ttail\n  \na\tr\tb\nb\ts\tc\n",
        ",subject,predicate,object\n0,a,r,b\n1,b,s,c\n",
        "id\tobject\tsource\tlabel\n0\tb\ta\tr\n1\tc\tb\ts\n",
        "score;Head;weight;Relation;Tail\nx y z;a;1;r;b\nx y z;b;2;s;c\n",
        "a\t\tr\t\tb\nb\t\ts\t\tc\n",
    ],
)
def test_a_file_is_read_however_it_is_written(content):
    assert read(content) == ABC


def test_ids_go_by_first_appearance_heads_before_tails():
    encoder = Encoder()
    source = TextSource(io.BytesIO(b"a\tr\tb\nc\ts\ta\nb\tr\td\n"), Path("g"))
    triples = read_stream(source, encoder)
    assert triples.tolist() == [[0, 0, 1], [2, 1, 0], [1, 0, 3]]


def test_spaces_hashes_and_quotes_belong_to_names_in_files_with_tabs():
    content = ' a \t"r"\t#b\n#x\tr,s\t"\n'
    assert read(content) == [(" a ", '"r"', "#b"), ("#x", "r,s", '"')]


def test_quoted_fields_of_comma_files():
    content = 'a,"r, with ""quotes""",b\n"two\nlines",s,""""\n'
    assert read(content, separator=",") == [("a", 'r, with "quotes"', "b"), ("two\nlines", "s", '"')]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("a\tb\tr\nb\tc\ts\n", {"columns": "htr"}),
        ("r\tb\ta\ns\tc\tb\n", {"columns": "RTH"}),
        ("a\tb\tr\nb\tc\ts\n", {"columns": (0, 2, 1)}),
        ("a\tx\tb\tr\t1\nb\ty\tc\ts\t2\n", {"columns": (0, 3, 2)}),
        ("a\tx\tb\tr\nb\ty\tc\ts\n", {"columns": "0,3,2"}),
        ("start_entity,x,End_Entity,pred\na,1,b,r\nb,2,c,s\n", {"columns": "Start_Entity,pred,end_entity"}),
        ('"start, entity";y;x\n"a";"b";r\nb;c;"s"\n', {"columns": ["start, entity", "x", "y"]}),
        ("head,weight,tail,relation\na,1,b,r\nb,2,c,s\n", {"columns": [0, 3, 2]}),
        ("x\ty\tz\na\tr\tb\nb\ts\tc\n", {"header": True}),
        ("a#r#b\nb#s#c\n", {"separator": "#"}),
        ("a r b\nb s c\n", {"separator": "space"}),
        ("a\tr\tb\nb\ts\tc\n", {"separator": "tab"}),
        ("a\tr\tb\nb\ts\tc\n", {"separator": "\\t"}),
    ],
)
def test_options_replace_guesses(content, options):
    assert read(content, **options) == ABC


PEOPLE = "Bob Fry\tworks with\tDan Doe\nAnn Lee\tis friend of\tBob Fry\n"


@pytest.mark.parametrize("content", [PEOPLE, PEOPLE.replace("\t", ","), PEOPLE.replace("\t", ";")])
def test_a_column_that_does_not_exist_is_refused_and_not_looked_for_between_spaces(content):
    sentence = (
        r"graph.txt has 3 columns, numbers 0 to 2 \(separated by \w+\), but columns=1,2,3 needs column 3. Columns"
    )
    with pytest.raises(InputError, match=sentence):
        read(content, columns="1,2,3")


def test_names_with_spaces_between_tabs_are_not_taken_apart_to_get_three_columns():
    with pytest.raises(
        InputError, match=r"line 1: found 2 columns, expected 3 \(separator guessed: tabs\). .* Give the separator with"
    ):
        read("Bob Fry\tDan\nAnn Lee\tBob\n")
    assert read("Bob knows\tDan\n", separator="whitespace") == [("Bob", "knows", "Dan")]


TWO_WAYS = "Ann Lee,r0,Bob\tr\tb\nC,r1,D\ts\te\n"


def test_two_separators_that_fit_equally_well_are_asked_about():
    content = "Ann Lee,r0,Bob;r;b\nC,r1,D;s;e\n"
    reading = r"commas \(Ann Lee \| r0 \| Bob;r;b\), semicolons \(Ann Lee,r0,Bob \| r \| b\)"
    with pytest.raises(InputError, match=rf"three columns with more than one separator: {reading}. Give the right one"):
        read(content)
    assert read(content, separator="semicolon")[0] == ("Ann Lee,r0,Bob", "r", "b")
    assert read(TWO_WAYS)[0] == ("Ann Lee,r0,Bob", "r", "b")  # tabs are rare in names


@pytest.mark.parametrize("name", ["g.csv", "g.csv.gz"])
def test_a_csv_file_in_which_tabs_fit_as_well_is_asked_about(tmp_path, name):
    content = TWO_WAYS.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match="more than one separator: tabs .* commas"):
        load_dataset(tmp_path / name, n_valid=0, n_test=0)


def test_only_spaces_and_tabs_separate_fields_by_white_space():
    """Python's split() also divides at a return or a form feed, so this header had three columns and the lines too."""
    with pytest.raises(InputError, match="line 1: found 2 columns, expected 3"):
        read("head\rrelation tail\na r b\nb s c\n")


def test_quoted_fields_over_several_lines_count_as_the_columns_they_are():
    content = '"a\nx","b\ny","r\nz"\n"b\nx","c\ny","s\nz"\n'
    assert read(content, columns=(0, 2, 1)) == [("a\nx", "r\nz", "b\ny"), ("b\nx", "s\nz", "c\ny")]
    with pytest.raises(InputError, match="has 3 columns, numbers 0 to 2 .* needs column 3"):
        read(content, columns=(0, 2, 3))


def test_the_columns_of_a_wide_header_are_those_of_every_line():
    with pytest.raises(InputError, match="line 3: found 3 columns, expected 4"):
        read(",subject,predicate,object\n0,a,r,b\nb,s,c\n")
    with pytest.raises(InputError, match="line 1: found 4 columns, expected 3 .* --columns subject,predicate,object"):
        read(",subject,predicate,object\n0,a,r,b\n", header=False)


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("head\trelation\ttail\na\tr\tb\nb\ts\tc\n", True),
        ("user,action,item\n1,buy,7\n2,see,8\n3,buy,7\n", True),
        ("user,action,item\n1,4,7\n2,5,8\n3,4,7\n", True),
        ("a\tr\tb\nb\ts\tc\nc\tp\ta\n", False),
        ("a\ttype\tb\nb\ttype\tc\nc\tp\ta\n", False),
        ("a\ttype\tb\n", False),
        ("0\t0\t1\n1\t0\t2\n2\t0\t0\n", False),
        ("Q1\tP1\tQ2\nQ2\tP3\tQ9\nQ4\tP3\tQ8\n", False),
        ("Movie\tis\tthing\n1\tis\t2\n2\tis\t3\n3\tis\t4\n", False),  # the relation occurs again
    ],
)
def test_the_first_line_is_judged_by_all_columns_and_the_lines_below(content, header):
    assert guess_dialect(content.encode(), Path("graph.txt")).header_lines == header


@pytest.mark.parametrize(
    "content",
    [
        "Person\tRelation\tCompany\na\tr\tb\nb\ts\tc\n",
        "movie,rel,thing\nJaws,by,Steven\nET,with,Drew\n",
        "user,action,item\n1,4,7\n",
        "user,action,item\n1,buy,x7\n2,see,y8\n3,buy,z7\n",
        "person,job,firm\nQ1,a,Q2\nQ3,b,Q4\nQ5,a,Q2\n",
        "one,two,three\nhttp://x/a,http://x/r,http://x/b\nhttp://x/b,http://x/r,http://x/c\n",
    ],
)
def test_a_first_line_that_may_be_a_header_is_asked_about(content):
    first, second = (", ".join(line.replace("\t", ",").split(",")) for line in content.splitlines()[:2])
    sentence = (
        rf"graph.txt: the first line \({first}\) may be a header or a triple. With --header \(header=True\) the first "
        rf"triple is \({second}\); with --no-header \(header=False\) it is \({first}\). Give one of the two."
    )
    with pytest.raises(InputError, match=sentence):
        read(content)
    n_lines = len(content.splitlines())
    assert len(read(content, header=True)) == n_lines - 1
    assert len(read(content, header=False)) == n_lines


def test_header_words_can_be_names():
    assert read("head\trelation\ttail\n", header=False) == [("head", "relation", "tail")]


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("a\tr\tb\nb\ts\n", {}, "graph.txt, line 2: found 2 columns, expected 3"),
        ("a\tr\tb\n\n\nb\ts\tc\td\n", {}, "line 4: found 4 columns, expected 3 .* --columns"),
        ("just some words here and there\n", {}, "line 1: found .* columns, expected 3"),
        ("a\tr\tb\na\tr\n", {"columns": (0, 1, 2)}, "line 2: found 2 columns, expected 3 "),
        ("h\tr\tt\na\tr\tb\na\n", {}, "line 3: found 1 column, expected 3"),
        ("a,r,b\nb,s,c\n", {"separator": "tab"}, "The separator does not fit: give --separator comma.$"),
        (
            "a\nb\n",
            {"separator": "tab"},
            "does not fit: give another with --separator, or leave it out.$",
        ),
        ("a\tr\tb\n\tr\tb\n", {}, "line 2: the head is empty"),
        ("a\tr\tb\na\t\tb\n", {}, "line 2: the relation is empty"),
        ("a\tr\tb\na\tr\t\n", {}, "line 2: the tail is empty"),
        ("a\tr\tb\na\tr\t\r\n", {}, "line 2: the tail is empty"),
        ('a,r,b\n"a,r,b\n', {}, "line 2: a quote .* never closed"),
        ('a,r,b\n"a"x,r,b\n', {}, "line 2: text follows a closing quote"),
        ('a,r,b\n"x\ny",r,b\n\na,r\n', {}, "line 5: found 2 columns"),
        (b"a\tr\tb\na\tr\t\xff\xfe\n", {}, "line 2: the byte 0xff is not UTF-8"),
        (b"a\tr\tb\n" * 3000 + b"a\tr\t\xc3\n", {}, "line 3,001: the byte 0xc3 is not UTF-8"),
        (b"a\tr\tb\xe2\x82", {}, "line 1: the byte 0xe2 is not UTF-8"),
    ],
)
def test_errors_name_the_file_and_the_line(content, options, sentence):
    with pytest.raises(InputError, match=sentence):
        read(content, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "hrr"}, "columns='hrr'"),
        ({"columns": (0, 1)}, "columns="),
        ({"columns": (0, 1, -1)}, "columns="),
        ({"columns": 7}, "columns=7"),
        ({"separator": "::"}, "separator='::' .* Give tab, comma, semicolon, space, whitespace or one ASCII character"),
        ({"separator": "\n"}, "separator="),
        ({"literals": "maybe"}, "literals='maybe' is unknown"),
        ({"duplicates": "x"}, "duplicates='x' is unknown"),
        ({"format": "pdf"}, "format='pdf' is unknown"),
        ({"valid_fraction": 1.5}, "valid_fraction=1.5"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, "leave nothing for train"),
        ({"valid_fraction": 0.1, "n_valid": 3}, "Both valid_fraction and n_valid"),
        ({"n_test": -1}, "n_test=-1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_an_option_out_of_range_is_a_config_error(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SourceOptions(**options)


def test_an_unknown_option_gets_a_suggestion():
    with pytest.raises(ConfigError, match="no option 'seperator'.*Did you mean 'separator'"):
        SourceOptions.of(None, {"seperator": ","})


COMPRESSORS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
LONG = "".join(f"entity {i}\trelation {i % 7}\tentity {i * i % 1009}\n" for i in range(5000)).encode()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressed_files_are_known_by_their_content(tmp_path, name):
    path = tmp_path / "graph.txt"
    path.write_bytes(COMPRESSORS[name](b"a\tr\tb\n") + COMPRESSORS[name](b"b\ts\tc\n"))
    encoder = Encoder()
    assert named(read_text_file(path, encoder, SourceOptions(), Counter()), encoder) == ABC


@pytest.mark.parametrize("cut", [3, 20, 500, -1])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_truncated_files_are_input_errors(tmp_path, name, cut):
    path = tmp_path / "graph.tsv"
    path.write_bytes(COMPRESSORS[name](LONG)[:cut])
    with pytest.raises(InputError, match=r"graph.tsv"):
        read_text_file(path, Encoder(), SourceOptions(), Counter())


@pytest.mark.parametrize("name", COMPRESSORS)
def test_damaged_files_are_input_errors(tmp_path, name):
    raw = bytearray(COMPRESSORS[name](LONG))
    middle = len(raw) // 2
    raw[middle : middle + 40] = bytes(40)
    path = tmp_path / "graph.tsv"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=f"damaged {name} file"):
        read_text_file(path, Encoder(), SourceOptions(), Counter())


def test_archives_of_files_are_not_text(tmp_path):
    for start, what in ((b"PK\x03\x04", "zip"), (bytes(257) + b"ustar", "tar")):
        (tmp_path / "x").write_bytes(start + bytes(500))
        with pytest.raises(InputError, match=f"a {what} archive. Unpack it"):
            read_text_file(tmp_path / "x", Encoder(), SourceOptions(), Counter())


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_blocks_of_any_size_give_the_same(monkeypatch, block):
    content = 'h,"r ""x""",t\n"line\nbreak",r,ü\n\n' * 7 + "€,r,𝄞"
    whole = read(content, separator=",")
    monkeypatch.setattr(text, "SAMPLE", block)
    monkeypatch.setattr(text, "BLOCK", block)
    assert read(content, separator=",") == whole
    assert len(whole) == 15


def test_a_line_that_never_ends_is_an_input_error(monkeypatch):
    monkeypatch.setattr(text, "SAMPLE", 64)
    monkeypatch.setattr(text, "BLOCK", 64)
    monkeypatch.setattr(text, "MAX_LINE", 1000)
    with pytest.raises(InputError, match="line 2: the line does not end"):
        read("a\tr\tb\n" + "x" * 5000)
    with pytest.raises(InputError, match="a quote is never closed"):
        read('a,r,b\n"' + "x,y\n" * 2000)


def plain_read(content, separator):
    """Python's own way: split at newlines and separators, without lines of spaces and tabs."""
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    return [tuple(line.split(separator)) for line in lines if line.strip(" \t")]


field = st.text(st.characters(exclude_characters="\t\n\r\ufeff", exclude_categories=("Cs",)), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(field, field, field), min_size=1, max_size=20), st.sampled_from(["\n", "\r\n", "\n \t\n"]))
@example([(" ", " ", " "), ("a", " ", "b")], "\n")
def test_tab_files_agree_with_splitting_in_python(rows, newline):
    content = newline.join("\t".join(row) for row in rows)
    assert read(content, separator="tab", header=False) == plain_read(content, "\t")


odd = "\r\ufeff" if sys.version_info >= (3, 11) else "\r\ufeff\0"  # before, the csv module wrote no NUL
quoted = st.text(st.characters(exclude_characters=odd, exclude_categories=("Cs",)), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(quoted, quoted, quoted), min_size=1, max_size=20))
def test_comma_files_agree_with_the_csv_module(rows):
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(rows)
    assert read(content.getvalue(), separator=",", header=False) == rows
