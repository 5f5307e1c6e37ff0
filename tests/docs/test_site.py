"""The site of the documentation builds, and its links are those of the pages."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from docs.pages import ROOT
from docs.test_reference import tool


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return tool("make_site")


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("material", reason="mkdocs-material is in the extra docs")
    monkeypatch.setattr(site, "BUILD", tmp_path)
    assert site.main() == 0, capfd.readouterr().err
    pages = {str(p.relative_to(tmp_path / "site").parent) for p in (tmp_path / "site").rglob("index.html")}
    assert {"reference/python", "tutorial", "notebooks/own-graph", "changelog"} <= pages
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()


def test_links_out_of_docs_lead_to_the_copy_in_the_site(site: ModuleType) -> None:
    pages = site.staged_pages(ROOT)
    source = ROOT / "docs" / "how-to" / "use-a-gpu.md"
    record = "../../benchmarks/records/2026-11-15_gpu_step/README.md"
    assert site.adjusted(f"[a]({record}) `x`", source, pages) == "[a](../records/2026-11-15_gpu_step/README.md) `x`"
    assert site.adjusted("[a](../../pyproject.toml)", source, pages) == "a"
    assert site.adjusted("[a](search-a-graph.md#plan)", source, pages) == "[a](search-a-graph.md#plan)"
    fenced = "```text\n[a](nowhere.md)\n```"
    assert site.adjusted(fenced, source, pages) == fenced
    with pytest.raises(SystemExit, match="which does not exist"):
        site.adjusted("[a](nowhere.md)", source, pages)


def test_the_navigation_has_every_page_once(site: ModuleType) -> None:
    pages = site.staged_pages(ROOT)
    nav = site.navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"), pages)
    listed = [e if isinstance(e, str) else next(iter(e.values())) for tab in nav for e in next(iter(tab.values()))]
    assert sorted(listed) == sorted(str(place) for place in pages.values() if place.suffix == ".md")


def test_a_notebook_becomes_text_code_and_output(site: ModuleType) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]},
    ]
    assert site.notebook_text({"cells": cells}) == "# Title\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n"
