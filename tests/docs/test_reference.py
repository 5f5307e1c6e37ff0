"""The reference pages are complete: settings, signatures, schemas, files, events, metrics, models."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import pkgutil
import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

import grash
import grash.errors
import grash_study
from docs.pages import REFERENCE, ROOT, blocks_of
from grash.evaluation.metrics import Evaluation, Metrics
from grash.models import MODELS
from grash.search.ledger import SearchState
from grash.search.schedule import round_sizes
from grash.search.settings import PRESETS, SearchSettings
from grash.search.trial import Configuration, Round, TrialResult


def schemas() -> dict[str, int]:
    """Return every SCHEMA with its VERSION, in the product and in the studies."""
    packages = ((grash.__path__, "grash."), (grash_study.__path__, "grash_study."))
    found_modules = (m.name for path, prefix in packages for m in pkgutil.walk_packages(path, prefix))
    modules = (name for name in found_modules if not name.endswith("_triton"))
    found = {}
    for name in modules:
        module = importlib.import_module(name) if name != "grash.__main__" else None
        if getattr(module, "SCHEMA", None) is not None:
            found[module.SCHEMA] = module.VERSION
    return found


def test_the_page_of_files_names_every_schema_and_version() -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    assert len(schemas()) == 9
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


def tool(name: str) -> ModuleType:
    """Load a script of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_a_search_is_up_to_date() -> None:
    page = (REFERENCE / "search.md").read_text(encoding="utf-8")
    assert tool("make_search_reference").filled(page) == page
    for name in [*SearchSettings.model_fields, *PRESETS]:
        assert f"`{name}`" in page, name


def test_the_keywords_are_those_of_the_records() -> None:
    pytest.importorskip("ruff", reason="ruff formats the generated file")
    made = tool("make_keywords")
    assert made.written() == made.FILE.read_text(encoding="utf-8"), "run tools/make_keywords.py"


def test_the_signatures_of_the_python_page_are_up_to_date() -> None:
    page, made = (REFERENCE / "python.md").read_text(encoding="utf-8"), tool("make_python_reference")
    assert made.filled(page) == page, "run tools/make_python_reference.py"
    emptied = made.MARKED.sub(lambda m: f"<!-- {m[1]} -->\n<!-- end -->", page)
    assert "```pyi" not in emptied and made.filled(emptied) == page


def test_the_python_page_has_every_public_name_and_error() -> None:
    page, made = (REFERENCE / "python.md").read_text(encoding="utf-8"), tool("make_python_reference")
    errors = [n for n, e in vars(grash.errors).items() if isinstance(e, type) and issubclass(e, grash.GrashError)]
    assert [name for name in errors if f"`{name}`" not in page and f"`grash.{name}`" not in page] == []
    written_by_hand = {"GrashError", "__version__"}
    assert sorted(m[1] for m in made.MARKED.finditer(page)) == sorted(set(grash.__all__) - written_by_hand)


def test_the_python_page_explains_every_parameter_of_a_public_function() -> None:
    page, made = (REFERENCE / "python.md").read_text(encoding="utf-8"), tool("make_python_reference")
    functions = {name: f for name in grash.__all__ if inspect.isfunction(f := getattr(grash, name))}
    assert {"train", "evaluate", "from_triples"} <= set(functions)
    prose, commands = made.MARKED.sub("", page), (REFERENCE / "cli.md").read_text(encoding="utf-8")
    for name, function in {**functions, "Search": grash.Search.__init__}.items():
        explained = prose + (function.__doc__ or "")
        if name == "load_dataset":  # the page refers to the options of the command line
            explained += commands.replace("--", "").replace("-", "_")
        words = made.parameters(name, made.signature_of(function))
        parameters = {p for word in words for p in re.findall(r"^[a-z]\w*", word)} - {"self"}
        assert {p for p in parameters if not re.search(rf"\b{p}\b", explained)} == set(), name


def test_the_page_of_the_run_folder_names_every_event_and_entry(searched: Path) -> None:
    page = (REFERENCE / "run-folder.md").read_text(encoding="utf-8")
    for event in (name.removeprefix("_on_") for name in vars(SearchState) if name.startswith("_on_")):
        assert f"| `{event}` |" in page, event
    for record in (Configuration, Round, TrialResult):
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


def test_a_model_folder_is_read_without_grash(workdir: Path, trained: Path, capsys: pytest.CaptureFixture) -> None:
    Path("runs/world").symlink_to(trained)
    (content,) = (c for language, c in blocks_of(ROOT / "docs" / "reference" / "files.md") if language == "python")
    assert "grash" not in content.replace("without grash", "")
    names: dict[str, object] = {}
    exec(content, names)
    model = grash.load_model(trained, device="cpu")
    row = names["tables"]["entity"][names["row_of"]["Peru"]]  # type: ignore[index]
    assert np.array_equal(row, model.entity_embeddings[model.entity_id("Peru")])
    assert capsys.readouterr().out.startswith("complex [")


def test_the_method_of_one_s_own_runs_on_a_published_table(workdir: Path, capsys: pytest.CaptureFixture) -> None:
    (content,) = (c for language, c in blocks_of(REFERENCE / "methods.md") if language == "python")
    (name,) = re.findall(r"docs/results/tables/[\w.-]+\.parquet", content)
    (workdir / name).parent.mkdir(parents=True)
    shutil.copy(ROOT / name, workdir / name)
    exec(compile(content, "methods.md", "exec"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["GraSH, default", "two stages", "two stages of 80"]
    assert all("cost 3.00" in line for line in lines)
    assert len(list((workdir / "results").glob("methods-codex-s-*.md"))) == 1


def test_the_page_of_metrics_names_every_metric_and_entry() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    one = Metrics(1, 1.0, 1.0, 1.0, {k: 1.0 for k in importlib.import_module("grash.evaluation.metrics").HITS})
    for name in [*one.to_dict(), *Evaluation.__dataclass_fields__]:
        assert f"`{name}`" in page, name


def test_every_model_is_on_the_page_of_models() -> None:
    page = (ROOT / "docs" / "concepts" / "models.md").read_text(encoding="utf-8")
    assert [name for name in MODELS if f"| `{name}` |" not in page] == []
