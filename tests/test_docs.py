"""What the pages show is true: Python blocks run, commands parse and run, links resolve, names are all there."""

from __future__ import annotations

import bz2
import gzip
import importlib
import importlib.util
import json
import math
import pkgutil
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import typer.main
import yaml

import grash
from grash.cli.entry import app
from grash.data.dataset import Dataset
from grash.errors import GrashError
from grash.evaluation.metrics import Evaluation, Metrics
from grash.models import MODELS
from grash.search.schedule import round_sizes
from grash.search.settings import PRESETS, SearchSettings
from grash.search.state import SearchState
from grash.search.trial import Configuration, Result, Round
from small_graph import grash as run_grash

ROOT = Path(__file__).parents[1]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"
SHOWN = [ROOT / "README.md", *HOW_TO, REFERENCE / "files.md", REFERENCE / "run-folder.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TINY = ("--set", "epochs=0.2", "--set", "dim=8", "--set", "negatives_head=20", "--set", "negatives_tail=20")
QUICK = ("--set", "training=negative_sampling", "--set", "negatives_head=20", "--set", "negatives_tail=20", "--quiet")
TINY_SEARCH = ("-n", "5", "--epochs", "3", "--dim", "8", "--engine", "sequential", *QUICK)  # two rounds on `world`


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """(language, content) of the fenced blocks of a page, in order."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands_of(content: str) -> list[list[str]]:
    """The words after `grash` of each such line of a shell block."""
    lines = [shlex.split(line, comments=True) for line in content.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "grash"]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def parse(words: list[str]) -> str:
    """The verb of a command line; raises what typer raises if a verb or an option does not exist."""
    command, path = typer.main.get_command(app), "grash"
    while words and words[0] in getattr(command, "commands", {}):
        command, path, words = command.commands[words[0]], f"{path} {words[0]}", words[1:]
    if path == "grash":
        raise ValueError(f"there is no verb in {words}")
    command.make_context(path, list(words))
    return path


def write_sources(folder: Path) -> None:
    """A small graph in every format that docs/how-to/own-dataset.md names, under the names it uses there."""
    people = [f"person {i}" for i in range(20)]
    triples = [(people[i], r, people[(i + s) % 20]) for r, s in (("knows", 1), ("likes", 3)) for i in range(20)]
    ids = np.array([[i, r, (i + s) % 20] for r, s in ((0, 1), (1, 3)) for i in range(20)], np.int32)
    tsv = "".join(f"{h}\t{r}\t{t}\n" for h, r, t in triples)
    numbers = "".join("\t".join(map(str, row)) + "\n" for row in ids.tolist())
    listed = {"entities": people, "relations": ["knows", "likes"]}
    (folder / "people.tsv").write_text(tsv)
    (folder / "people.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    (folder / "people.csv").write_text(
        "subject,predicate,object\n" + "".join(f'"{h}",{r},"{t}"\n' for h, r, t in triples)
    )
    (folder / "other.csv").write_text("".join(f"{h};{t};{r}\n" for h, r, t in triples))
    (folder / "wide.tsv").write_text("".join(f"{r}\t{h}\tx\ty\t{t}\n" for h, r, t in triples))
    iri = [" ".join(f"<http://example.org/{x.replace(' ', '_')}>" for x in triple) + " .\n" for triple in triples]
    (folder / "people.nt").write_text("".join(iri))
    (folder / "people.ttl").write_text("".join(iri) + '<http://example.org/person_1> <http://example.org/age> "7" .\n')
    polars = importlib.import_module("polars")
    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*triples))))
    polars.DataFrame(columns).write_parquet(folder / "people.parquet")
    np.save(folder / "ids.npy", ids)
    write_folders(folder, tsv, numbers, ids, listed)


def write_folders(folder: Path, tsv: str, numbers: str, ids: np.ndarray, listed: dict[str, list[str]]) -> None:
    for name in ("splits", "arrays", "libkge_folder", "rotate_folder", "openke_folder"):
        (folder / name).mkdir()
    (folder / "splits" / "train.txt").write_text(tsv)
    (folder / "splits" / "test.txt.bz2").write_bytes(bz2.compress(tsv.splitlines()[0].encode()))
    np.save(folder / "arrays" / "train.npy", ids)
    for stem, names in listed.items():
        one, numbered = stem.removesuffix("ies").removesuffix("s"), "".join(f"{i}\t{n}\n" for i, n in enumerate(names))
        one = {"entit": "entity"}.get(one, one)
        (folder / "arrays" / f"{stem}.txt").write_text("\n".join(names))
        (folder / "libkge_folder" / f"{one}_ids.del").write_text(numbered)
        (folder / "rotate_folder" / f"{stem}.dict").write_text(numbered)
        swapped = "".join(f"{n}\t{i}\n" for i, n in enumerate(names))
        (folder / "openke_folder" / f"{one}2id.txt").write_text(f"{len(names)}\n{swapped}")
    (folder / "libkge_folder" / "train.del").write_text(numbers)
    (folder / "rotate_folder" / "train.txt").write_text(tsv)
    swapped = "".join(f"{h} {t} {r}\n" for h, r, t in ids.tolist())
    (folder / "openke_folder" / "train2id.txt").write_text(f"{len(ids)}\n{swapped}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of the bundled graph, trained for a moment."""
    folder = tmp_path_factory.mktemp("docs") / "world"
    grash.train("world", dim=8, epochs=0.2, negatives_head=20, negatives_tail=20, out=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a search of the bundled graph, as small as it can be."""
    folder = tmp_path_factory.mktemp("docs") / "search"
    assert run_grash("search", "world", "-o", str(folder), *TINY_SEARCH).code == 0
    return folder


@pytest.fixture
def place(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with the files that the pages speak of; MODELS is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    (tmp_path / "questions.tsv").write_text("Bristol\tlocated_in\t?\n?\thas_capital\tLima\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    before = dict(MODELS)
    yield tmp_path
    MODELS.clear()
    MODELS.update(before)


def is_here(words: list[str]) -> bool:
    """Whether a command's graph or model is there to run it on, and its device."""
    subject = next((w for w in words[2 if words[0] == "study" else 1 :] if not w.startswith("-")), "world")
    elsewhere = words[0] in ("datasets", "dashboard") or any("cuda:1" in w or w == "--open" for w in words)
    return not elsewhere and (words[0] == "generate" or subject == "world" or Path(subject).exists())


def made_small(words: list[str]) -> list[str]:
    """What is added to a command so that it takes a moment; the last of two equal options counts."""
    if words[0] == "train":
        taken = "runs/world" in words and Path("runs/world").exists()
        return [*TINY, *(["--overwrite"] if taken else [])]
    if words[0] == "search" and not (Path(words[1]) / "search.yaml").exists():
        return list(TINY_SEARCH)
    if words[0] in ("search", "resume"):  # of a run folder
        return ["--engine", "sequential", *(["-n", "7"] if "-n" in words else [])]
    if words[0] == "study":
        return ["--n", "3", "--epochs", "0.2", "--dim", "8", "--techniques", "chain,epochs", "--device", "cpu"]
    return ["--no-probe"] if words[0] == "plan" else []


def run_page(page: Path, trained: Path, searched: Path) -> tuple[str, int]:
    """Runs a page's Python blocks and commands in order; what was printed, and how many commands ran."""
    names: dict[str, object] = {"__name__": "page"}
    printed, n_ran, text = "", 0, page.read_text(encoding="utf-8")
    if "train world -o runs/world" not in text:
        Path("runs/world").symlink_to(trained)
    if "runs/search" in text and not re.search(r"grash search world.* -o runs/search$", text, re.MULTILINE):
        shutil.copytree(searched, "runs/search")
    for language, content in blocks_of(page):
        if language == "python":
            exec(compile(content, page_id(page), "exec"), names)
        for words in commands_of(content) if language == "bash" else []:
            if is_here(words):
                ran = run_grash(*words, *made_small(words))
                assert ran.code == 0, f"{' '.join(words)}: {ran.err}"
                printed, n_ran = printed + ran.out, n_ran + 1
    return printed, n_ran


@pytest.mark.parametrize("page", SHOWN, ids=page_id)
def test_a_page_runs_from_top_to_bottom(
    page: Path, place: Path, trained: Path, searched: Path, capsys: pytest.CaptureFixture
) -> None:
    _, n_ran = run_page(page, trained, searched)
    assert n_ran == sum(is_here(w) for language, c in blocks_of(page) if language == "bash" for w in commands_of(c))
    if page.name == "README.md":
        shown = next(content for language, content in blocks_of(page) if language == "text")
        out = capsys.readouterr().out
        assert out.splitlines()[0] == shown.splitlines()[0], "the dataset has other counts than README says"
        assert out.splitlines()[2].split(maxsplit=1)[1] == shown.splitlines()[2].split(maxsplit=1)[1]
        mrr, said = (float(text.splitlines()[1].split()[-1]) for text in (out, shown))
        assert mrr == pytest.approx(said, abs=0.02), "README shows another test MRR"


def test_most_commands_are_really_run(place: Path) -> None:
    for made in ("world", "found", "search"):
        (place / "runs" / made / "model").mkdir(parents=True)
    for made in ("people.grash", "graph.grash", "big.tsv", "big.grash", "made.grash"):
        (place / made).mkdir()
    words = [w for page in SHOWN for language, c in blocks_of(page) if language == "bash" for w in commands_of(c)]
    assert len(words) > 30
    assert sum(map(is_here, words)) / len(words) > 0.8


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    for language, content in blocks_of(page):
        for words in commands_of(content) if language == "bash" else []:
            parse(words)
            for word in words:
                if word.startswith("examples/"):
                    assert (ROOT / word).exists(), word


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
    """The anchors of a page's headings, as they are made from the text."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_index() -> None:
    index, linked = ROOT / "docs" / "README.md", set()
    for page in (index, ROOT / "docs" / "results" / "README.md"):
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


def schemas() -> dict[str, int]:
    """Every SCHEMA with its VERSION in the package."""
    modules = (m.name for m in pkgutil.walk_packages(grash.__path__, "grash.") if not m.name.endswith("_triton"))
    found = {}
    for name in modules:
        module = importlib.import_module(name) if name != "grash.__main__" else None
        if getattr(module, "SCHEMA", None) is not None:
            found[module.SCHEMA] = module.VERSION
    return found


def test_the_page_of_files_names_every_schema_and_version() -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    assert len(schemas()) == 7
    for schema, version in schemas().items():
        assert re.search(rf"`{schema}` \| {version} \|", page), f"{schema} {version} is missing"


def test_the_page_of_files_names_every_file_and_entry(trained: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grash.train("world", dim=8, epochs=9, watch=stop, checkpoint=tmp_path / "c", device="cpu")
    for path in [*trained.rglob("*"), *(tmp_path / "c").rglob("*")]:
        assert path.is_dir() or f"`{path.name}`" in page, path.name
    for path in (trained / "model.json", trained / "dataset" / "dataset.json", tmp_path / "c" / "state.json"):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            assert f"`{entry}`" in page, f"{path.name}: {entry}"


def search_reference() -> ModuleType:
    """The script that writes the tables of docs/reference/search.md."""
    spec = importlib.util.spec_from_file_location("make_search_reference", ROOT / "tools" / "make_search_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_a_search_is_up_to_date() -> None:
    page = (REFERENCE / "search.md").read_text(encoding="utf-8")
    assert search_reference().filled(page) == page
    for name in [*SearchSettings.model_fields, *PRESETS]:
        assert f"`{name}`" in page, name


def test_the_page_of_the_run_folder_names_every_event_and_entry(searched: Path) -> None:
    page = (REFERENCE / "run-folder.md").read_text(encoding="utf-8")
    for event in (name.removeprefix("_see_") for name in vars(SearchState) if name.startswith("_see_")):
        assert f"| `{event}` |" in page, event
    for record in (Configuration, Round, Result):
        assert [f for f in record.__dataclass_fields__ if f"`{f}`" not in page] == []
    lines = (searched / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    for entry in {key for line in lines for key in json.loads(line)}:
        assert f"`{entry}`" in page, entry


def test_the_page_of_the_run_folder_names_every_file(searched: Path) -> None:
    page = (REFERENCE / "run-folder.md").read_text(encoding="utf-8")
    for path in searched.iterdir():
        assert f"`{path.name}{'/' if path.is_dir() else ''}`" in page, path.name
    content = yaml.safe_load((searched / "search.yaml").read_text(encoding="utf-8"))
    for entry in [*content, *content["dataset"]]:
        assert f"`{entry}`" in page, entry


def test_the_worked_example_of_the_search_is_right() -> None:
    page = (ROOT / "docs" / "concepts" / "search.md").read_text(encoding="utf-8")
    defaults = SearchSettings()
    sizes = round_sizes(defaults.n_trials, defaults.eta)
    shares = [defaults.full_budget / len(sizes) / n for n in sizes]
    for number, (n, f) in enumerate(zip(sizes, shares), 1):
        root, epochs = math.isqrt(f.denominator), float(defaults.full_epochs) / math.isqrt(f.denominator)
        graph = f"1/{root} of the triples" if number == 1 else f"1/{root}"
        row = f"| {number} | {n} | {f} | {graph} | {epochs:g} | 1/{root} · 1/{root} | {n * f} |"
        assert row in page, row


def test_a_model_folder_is_read_without_grash(place: Path, trained: Path, capsys: pytest.CaptureFixture) -> None:
    Path("runs/world").symlink_to(trained)
    (content,) = (c for language, c in blocks_of(ROOT / "docs" / "reference" / "files.md") if language == "python")
    assert "grash" not in content.replace("without grash", "")
    names: dict[str, object] = {}
    exec(content, names)
    model = grash.load_model(trained, device="cpu")
    row = names["tables"]["entity"][names["row_of"]["Peru"]]  # type: ignore[index]
    assert np.array_equal(row, model.entity_embeddings[model.entity_id("Peru")])
    assert capsys.readouterr().out.startswith("complex [")


def test_the_method_of_one_s_own_runs_on_a_published_table(place: Path, capsys: pytest.CaptureFixture) -> None:
    (content,) = (c for language, c in blocks_of(REFERENCE / "methods.md") if language == "python")
    (name,) = re.findall(r"docs/results/tables/[\w.-]+\.parquet", content)
    (place / name).parent.mkdir(parents=True)
    shutil.copy(ROOT / name, place / name)
    exec(compile(content, "methods.md", "exec"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["GraSH, default", "two stages", "two stages of 80"]
    assert all("cost 3.00" in line for line in lines)
    assert len(list((place / "results").glob("methods-codex-s-*.md"))) == 1


def test_the_page_of_metrics_names_every_metric_and_entry() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    one = Metrics(1, 1.0, 1.0, 1.0, {k: 1.0 for k in importlib.import_module("grash.evaluation.metrics").HITS})
    for name in [*one.to_dict(), *Evaluation.__dataclass_fields__]:
        assert f"`{name}`" in page, name


def test_every_model_is_on_the_page_of_models() -> None:
    page = (ROOT / "docs" / "concepts" / "models.md").read_text(encoding="utf-8")
    assert [name for name in MODELS if f"| `{name}` |" not in page] == []


def test_readmes_tree_holds_every_layer() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    layers = {p.name for p in (ROOT / "src" / "grash").iterdir() if (p / "__init__.py").exists()}
    assert [layer for layer in sorted(layers) if f"── {layer}/" not in text] == []


def test_pages_name_only_files_that_exist() -> None:
    for page in (ROOT / "docs" / "concepts" / "layers.md", ROOT / "CONTRIBUTING.md", *HOW_TO):
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists() or (ROOT / "src" / "grash" / name).exists(), f"{page_id(page)}: {name}"


def test_sources_of_the_how_to_hold_the_same_graph(place: Path) -> None:
    for name in ("people.tsv", "people.csv", "people.nt", "people.parquet", "ids.npy", "arrays", "openke_folder"):
        data = grash.load_dataset(name, n_valid=2, n_test=2)
        assert isinstance(data, Dataset) and (data.n_entities, data.n_relations) == (20, 2), name
    with pytest.raises(GrashError, match="no file or folder"):
        grash.load_dataset("persons.tsv")
