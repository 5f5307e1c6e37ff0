"""Build the site of the documentation with mkdocs: `python tools/make_site.py`, or `make docs`.

The pages are plain Markdown that also reads well in the repository, so some link to files outside docs. This script
copies the pages and what they link to into build/site-source, adjusts all links, turns notebooks into pages, takes the
navigation from docs/README.md, and runs `mkdocs build --strict`, which fails on a broken link or anchor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PICTURES = (".png", ".svg")


def main() -> int:
    stage, pages = BUILD / "site-source", staged_pages(ROOT)
    shutil.rmtree(stage, ignore_errors=True)
    for source, target in pages.items():
        place = stage / target
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in (".md", ".ipynb"):
            place.write_text(adjusted(page_text(source), source, pages), encoding="utf-8")
        else:
            shutil.copy(source, place)
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"docs_dir": str(stage), "site_dir": str(BUILD / "site")}
    settings["nav"] = navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"), pages)
    config = BUILD / "site.yml"
    config.write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


def staged_pages(root: Path) -> dict[Path, Path]:
    """Return {file: its place in the site}: all of docs, the records, and files that pages link to."""
    docs = [p for p in sorted((root / "docs").rglob("*")) if p.suffix in (".md", ".ipynb", *PICTURES)]
    pages = {p: p.relative_to(root / "docs") for p in docs}
    pages |= {p: p.relative_to(root / "benchmarks") for p in sorted((root / "benchmarks" / "records").rglob("*.md"))}
    pages |= {root / name: Path(name.lower()) for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    pages |= {p: p.relative_to(root) for p in sorted((root / "examples").rglob("*.yaml"))}
    return {p: place.with_suffix(".md") if p.suffix == ".ipynb" else place for p, place in pages.items()}


def page_text(source: Path) -> str:
    """Return the Markdown of a page or a notebook."""
    text = source.read_text(encoding="utf-8")
    return text if source.suffix == ".md" else notebook_text(json.loads(text))


def notebook_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its text, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        content = "".join(cell["source"])
        parts.append(content if cell["cell_type"] == "markdown" else f"```python\n{content}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown = "".join(output.get("text") or data.get("text/plain") or [])
            if shown.startswith("<IPython"):
                parts.append(f"<div>{''.join(data.get('text/html', []))}</div>")
            elif shown and output.get("name") != "stderr":
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def adjusted(text: str, source: Path, pages: dict[Path, Path]) -> str:
    """Return a page with links that are right in the site; links to files that are not part of it become text."""

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        if target.startswith(("http://", "https://", "#")):
            return match[0]
        name, mark, anchor = target.partition("#")
        file = (source.parent / name).resolve()
        if file not in pages:
            if not file.exists():
                raise SystemExit(f"{source.relative_to(ROOT)} links to {target}, which does not exist.")
            return label[1:-1]
        return f"{label}({os.path.relpath(pages[file], pages[source].parent)}{mark}{anchor})"

    fences = FENCE.findall(text)
    parts = FENCE.split(text)
    changed = [LINK.sub(link, part) for part in parts]
    return "".join(part + fence for part, fence in zip(changed, [*fences, ""]))


def navigation(index: str, pages: dict[Path, Path]) -> list[dict[str, Any]]:
    """Return the navigation: a tab per section of docs/README.md, with its links in order."""
    docs = ROOT / "docs"
    nav: list[dict[str, Any]] = [{"Start": "README.md"}]
    listed = {"README.md"}
    for section in index.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        links = re.findall(r"^(?:- |\d+\. )\[([^\]]+)\]\(([^)#]+)\)", body, re.MULTILINE)
        entries = [{name: str(pages[(docs / target).resolve()])} for name, target in links]
        listed |= {place for entry in entries for place in entry.values()}
        nav.append({title: entries})
    kinds = {"Results": "results", "Records": "records"}
    rest = sorted(str(p) for p in pages.values() if p.suffix == ".md" and str(p) not in listed)
    for title, folder in kinds.items():
        more: list[Any] = [place for place in rest if place.startswith(f"{folder}/")]
        rest = [place for place in rest if place not in more]
        there = next((entry for entry in nav if title in entry), None)
        if there is None:
            nav.append({title: more})
        else:
            there[title] += more
    nav[0] = {"Start": ["README.md", *rest]}
    return nav


if __name__ == "__main__":
    sys.exit(main())
