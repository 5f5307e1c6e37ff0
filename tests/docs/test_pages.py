"""The pages are correct: Python blocks run, commands parse and run, links resolve, numbers match their records."""

from __future__ import annotations

import ast
import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import grash
from docs.pages import (
    BLOCK,
    CONCEPTS,
    HOW_TO,
    LINK,
    PAGES,
    ROOT,
    SHOWN,
    TINY_SEARCH,
    blocks_of,
    commands_of,
    page_id,
    scripts_of,
)
from grash.cli.app import all_commands
from grash.data.dataset import Dataset
from grash.errors import GrashError
from small_graph import grash as run_grash

NAMES_IN_TABLES = {  # the row of docs/results/overview.md → the method's name in methods-overview.csv
    "grash": "GraSH, default",
    "the paper's rules on the same subgraphs": "paper's rules, chain (combined)",
    "TPE with grash's rounds": "TPE with our rounds",
    "Hyperband": "Hyperband",
    "one epoch, then the best": "one epoch, then the best",
    "KGTuner-style": "KGTuner-style",
    "random search": "random search",
    "TPE (two random runs, one proposed)": "TPE",
    "best of its 64 configurations, all trained in full": "best test MRR of its n, all trained in full",
}
NUMBERS = ("No", "One", "Two", "Three")
TINY = ("--set", "epochs=0.2", "--set", "dim=8", "--set", "negatives_head=20", "--set", "negatives_tail=20")


def parse(words: list[str]) -> str:
    """Return the command of a command line; typer raises an error if a command or an option does not exist."""
    command, path = all_commands(), "grash"
    while words and words[0] in getattr(command, "commands", {}):
        command, path, words = command.commands[words[0]], f"{path} {words[0]}", words[1:]
    if path == "grash":
        raise ValueError(f"there is no verb in {words}")
    command.make_context(path, list(words))
    return path


def can_run(words: list[str]) -> bool:
    """Return whether the graph or model and the device of a command exist here."""
    subject = next((w for w in words[2 if words[0] == "study" else 1 :] if not w.startswith("-")), "world")
    elsewhere = words[0] in ("datasets", "dashboard", "serve") or any("cuda:1" in w or w == "--open" for w in words)
    return not elsewhere and (subject == "world" or Path(subject).exists())


def options_to_make_it_small(words: list[str]) -> list[str]:
    """Return options that make a command fast; the last of two equal options counts."""
    if words[0] == "train":
        return list(TINY)
    if words[0] == "search" and not (Path(words[1]) / "search.yaml").exists():
        return list(TINY_SEARCH)
    if words[0] in ("search", "resume"):  # of a run folder
        return ["--engine", "sequential", *(["-n", "7"] if "-n" in words else [])]
    if words[0] == "study":
        return ["--n", "3", "--epochs", "0.2", "--dim", "8", "--techniques", "core-order,epochs", "--device", "cpu"]
    return ["--no-probe"] if words[0] == "plan" else []


def run_page(page: Path, trained: Path, searched: Path) -> tuple[str, int]:
    """Run a page's Python blocks and commands in order; return the output and the number of commands."""
    names: dict[str, object] = {"__name__": "page"}
    printed, n_ran, text = "", 0, page.read_text(encoding="utf-8")
    if "train world -o runs/world" not in text:
        Path("runs/world").symlink_to(trained)
    if "runs/search" in text and not re.search(r"grash search world.* -o runs/search$", text, re.MULTILINE):
        shutil.copytree(searched, "runs/search")
    for language, content in blocks_of(page):
        if language == "python":
            exec(compile(content, page_id(page), "exec"), names)
        for script, *arguments in scripts_of(content) if language == "bash" else []:
            subprocess.run([sys.executable, ROOT / script, *arguments], check=True)
        for words in commands_of(content) if language == "bash" else []:
            if can_run(words):
                ran = run_grash(*words, *options_to_make_it_small(words))
                assert ran.code == 0, f"{' '.join(words)}: {ran.err}"
                printed, n_ran = printed + ran.out, n_ran + 1
    return printed, n_ran


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=page_id)
def test_a_page_runs_from_top_to_bottom(
    page: Path, workdir: Path, trained: Path, searched: Path, capsys: pytest.CaptureFixture
) -> None:
    _, n_ran = run_page(page, trained, searched)
    assert n_ran == sum(can_run(w) for language, c in blocks_of(page) if language == "bash" for w in commands_of(c))
    if page.name == "README.md":
        shown = next(content for language, content in blocks_of(page) if language == "text")
        out = capsys.readouterr().out
        assert out.splitlines()[0] == shown.splitlines()[0], "README shows other counts of the dataset"
        assert out.splitlines()[2].split(maxsplit=1)[1] == shown.splitlines()[2].split(maxsplit=1)[1]
        mrr, shown_mrr = (float(text.splitlines()[1].split()[-1]) for text in (out, shown))
        assert mrr == pytest.approx(shown_mrr, abs=0.02), "README shows another test MRR"


def test_most_commands_are_really_run(workdir: Path) -> None:
    for made in ("world", "found", "search"):
        (workdir / "runs" / made / "model").mkdir(parents=True)
    for made in ("people.grash", "graph.grash", "big.tsv", "big.grash", "made.grash"):
        (workdir / made).mkdir()
    words = [w for page in SHOWN for language, c in blocks_of(page) if language == "bash" for w in commands_of(c)]
    assert len(words) > 30
    assert sum(map(can_run, words)) / len(words) > 0.8


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    for language, content in blocks_of(page):
        for words in commands_of(content) if language == "bash" else []:
            parse(words)
            for word in words:
                if word.startswith("examples/"):
                    assert (ROOT / word).exists(), word


def test_pages_that_are_followed_one_after_the_other_write_to_different_places() -> None:
    writers: dict[str, set[str]] = {}
    for page in SHOWN:
        for language, content in blocks_of(page):
            for words in commands_of(content) if language == "bash" else []:
                for option, place in zip(words, words[1:]):
                    if option in ("-o", "--out"):  # the same search twice continues
                        writer = shlex.join(words) if words[0] == "search" else page_id(page)
                        writers.setdefault(place, set()).add(writer)
            for place in re.findall(r'\.save\("([^"]+)"', content) if language == "python" else []:
                writers.setdefault(place, set()).add(page_id(page))
    assert len(writers) > 20 and {place: found for place, found in writers.items() if len(found) > 1} == {}


def test_a_wrong_command_is_noticed() -> None:
    for words in (["learn", "world"], ["train", "world", "--speed", "9"], ["datasets", "get"]):
        with pytest.raises(Exception, match="verb|such option|[Mm]issing"):
            parse(words)
    assert parse(["datasets", "get", "fb15k-237"]) == "grash datasets get"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page_id(page)} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{page_id(page)} links to {target}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_index() -> None:
    index, linked = ROOT / "docs" / "README.md", set()
    for page in (index, ROOT / "docs" / "results" / "overview.md"):
        linked |= {(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(page.read_text())}
    assert {p for p in (ROOT / "docs").rglob("*.md") if p != index} <= linked


def test_decisions_are_numbered_and_hold_to_their_form() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]} "), page.name
        assert len(text.splitlines()) <= 60, f"{page.name} is longer than a page"
        for part in ("**Status.**", "**Context.**", "**Options", "**Decision.**", "**Consequences.**"):
            assert part in text, f"{page.name} lacks {part}"


def test_the_readme_is_short_and_shows_a_live_search_and_a_report() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 700
    assert len(re.findall(r"^\d\. ", text.partition("## How it works")[2].partition("## ")[0], re.MULTILINE)) == 6
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    assert all(10_000 < (ROOT / picture).stat().st_size < 200_000 for picture in pictures)


def test_where_everything_is_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs" / "concepts" / "where-everything-is.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w/]+\.py)` \| ", text, re.MULTILINE)
    files = {path for path in (ROOT / "src").rglob("*.py") if not is_only_a_docstring(path)}
    paths = {str(path.relative_to(ROOT / "src")).removeprefix("grash/") for path in files}
    assert sorted(paths - set(named)) == [], "modules that the page does not name"
    assert sorted(set(named) - paths) == [], "modules that do not exist"
    assert len(named) == len(set(named)), "a module is named twice"


def is_only_a_docstring(path: Path) -> bool:
    """Return whether a file is an __init__.py without code."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return path.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in body)


def test_pages_name_only_files_that_exist() -> None:
    for page in (ROOT / "CONTRIBUTING.md", *CONCEPTS, *HOW_TO):
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8")):
            homes = (ROOT / name, ROOT / "src" / name, ROOT / "src" / "grash" / name)
            assert any(home.exists() for home in homes), f"{page_id(page)}: {name}"


def test_the_overview_shows_the_numbers_of_the_tables() -> None:
    results = ROOT / "docs" / "results"
    with (results / "methods-overview.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    page = (results / "overview.md").read_text(encoding="utf-8")
    section = page.partition("## Search methods")[2].partition("## ")[0]
    shown = [line.strip("| ").split(" | ") for line in section.splitlines() if re.search(r"\| \**\.\d", line)]
    assert len(shown) == len(NAMES_IN_TABLES)
    for name, *values in shown:
        for graph, value in zip(("fb15k-237", "wn18rr", "codex-s"), values):
            found = {r["test_mrr"] for r in rows if (r["graph"], r["method"]) == (graph, NAMES_IN_TABLES[name])}
            assert any(f"{float(mrr):.4f}" == f"0{value.strip('*')}" for mrr in found), f"{name} on {graph}: {value}"


def test_every_result_of_the_readme_is_that_of_its_record() -> None:
    text = " ".join(
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Results")[2].partition("## ")[0].split()
    )
    records = ROOT / "benchmarks" / "records"
    confirmed = (ROOT / "docs" / "results" / "confirm-fb15k-237-complex-d512-e60-default-and-others.md").read_text()
    search, step = ((records / f"2026-11-15_gpu_{name}" / "README.md").read_text() for name in ("search", "step"))
    picks, libkge = ((records / f"2026-11-18_{name}" / "README.md").read_text() for name in ("picks", "libkge"))
    found = re.findall(r"d = (512), E = 60, .*\(mean (.\d+)\) in ([\d.]+), ([\d.]+) and ([\d.]+) s", picks)
    dim, mean, *seconds = found[-1]  # the last section is the newest
    first, *later = map(float, seconds)
    times = re.findall(r"^# .*negatives: (\d+) times; 1vsAll: (\d+) times; ranking: (\d+) times", libkge)[0]
    sobol = row_of(confirmed, "| complex | sobol |")
    published = row_of(confirmed, "| complex | LibKGE, 200 trials trained in full")
    stepped = row_of(step, "| ComplEx, 123,182 entities, 3864 + 8803 negatives |")
    assert "(49, 60, 62, 65 and 76 times ours" in step and "(62 ×)" in stepped[-1]  # so that row is the median run
    expected = [
        f"FB15k-237, ComplEx, d = {dim}: a search with final training takes {min(later):.0f} to {max(later):.0f} s on "
        f"one H200 ({first:.0f} s the first time, while kernels compile) and reaches a test MRR of "
        f"{short_mrr(mean)} (mean of three seeds,",
        f"The best of 200 full training runs of LibKGE has {short_mrr(published[3])}, at d = {published[2]}.",
        f"an earlier version found {short_mrr(sobol[3])} ({NUMBERS[int(sobol[2][0])].lower()} seeds,",
        f"on an H200: a step is {times[0]} times faster with 500 + 500 negatives and {times[1]} times with all "
        f"entities (d = 512), and FB15k-237's test set is ranked {times[2]} times faster.",
        f"A graph with {re.findall('DebianKG-10: ([0-9,]+) entities', search)[0]} entities: the rounds of a search "
        f"over {re.findall('n = ([0-9]+)', search)[0]} configurations take "
        f"{float(re.findall(r'nothing compiled before: whole search .*?([0-9.]+) s', search)[0]):.0f} s on one H200, "
        f"without the comparison of finalists and the final training.",
        f"(The paper: {re.findall('took ([0-9.]+) minutes on four NVIDIA GeForce RTX 2080 Ti', search)[0]} minutes "
        f"for {re.findall(r'another graph .(YAGO3-10)', search)[0]} on four RTX 2080 Ti; other hardware, another "
        f"graph.)",
        f"A training step, ComplEx, d = {re.findall('d = ([0-9]+)', step)[0]}, {3864 + 8803:,} negatives, on an H200: "
        f"{float(re.findall('[0-9.]+', stepped[-2])[0]):.0f} µs in bf16 "
        f"({float(re.findall('in tf32, ([0-9.]+) in float32', step)[0]):.0f} µs in float32), against "
        f"{stepped[2].split()[0]} µs for the same step in PyTorch with autograd and sparse embeddings (median of five "
        f"runs).",
    ]
    for sentence in expected:
        assert sentence in text, sentence
        text = text.replace(sentence, "")
    rest = re.sub(r"\]\([^)]*\)", "", text)
    assert re.findall(r"\d", rest) == [], f"numbers that are compared with no record: {rest}"


def row_of(page: str, start: str) -> list[str]:
    """Return the cells of the first row of a page that starts like this."""
    line = next(line for line in page.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def short_mrr(cell: str) -> str:
    return f"{float(cell.split()[0]):.3f}".removeprefix("0")


def test_sources_of_the_how_to_hold_the_same_graph(workdir: Path) -> None:
    for name in ("people.tsv", "people.csv", "people.nt", "people.parquet", "ids.npy", "arrays", "openke_folder"):
        data = grash.load_dataset(name, n_valid=2, n_test=2)
        assert isinstance(data, Dataset) and (data.n_entities, data.n_relations) == (20, 2), name
    with pytest.raises(GrashError, match="no file or folder"):
        grash.load_dataset("persons.tsv")
