"""Count files, lines, single-importer modules and the walk, and print them as a Markdown table.

    python tools/count_code.py [ROOT ...]

Each ROOT is a checkout with a `src` folder and becomes one column; without arguments it is this checkout. Two roots
give the before-and-after table of docs/concepts/where-everything-is.md. Only the standard library is used, except that
the walk runs each checkout's own code, so torch and numpy must be installed.

- *Files* and *lines*: every `.py` file below `src`, blank lines and comments included.
- *Modules with one importer*: modules that exactly one other module of `src` imports. Imports are read with `ast`,
  including those inside functions. Empty `__init__.py` files are not counted.
- *The walk*: a fresh process loads a TSV file, trains a model on the CPU and asks it for a prediction. *Loaded* are the
  modules of `grash` in `sys.modules` afterwards. *Run* are those of which a function is called when the same is done a
  second time, so imports do not count. Empty `__init__.py` files are not counted.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("grash", "grash_study")

WALK = """
import inspect
import sys
import threading
from pathlib import Path

import grash

run = set()


def walk():
    Path("graph.tsv").write_text("".join(f"e{i}\\tr{i % 2}\\te{i * 7 % 40}\\n" for i in range(400)))
    data = grash.load_dataset("graph.tsv")
    model = grash.train(data, model="complex", dim=8, epochs=1, device="cpu")
    model.predict(head="e1", relation="r1", k=3)


def note_call(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        run.add(frame.f_globals.get("__name__", ""))


walk()
print(*sys.modules)
threading.setprofile(note_call)
sys.setprofile(note_call)
walk()
sys.setprofile(None)
print(*run)
"""


def main(roots: list[Path]) -> None:
    columns = [count(root) for root in roots]
    names = list(dict.fromkeys(name for column in columns for name in column))
    print(f"| | {' | '.join(root.resolve().name for root in roots)} |")
    print(f"|---|{'---:|' * len(roots)}")
    for name in names:
        print(f"| {name} | {' | '.join(f'{column.get(name, 0):,}' for column in columns)} |")


def count(root: Path) -> dict[str, int]:
    """The rows of one column, by name."""
    modules = find_modules(root / "src")
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    product = [name for name in modules if is_product(name)]
    rows = {
        "files in `src`": len(modules),
        "lines in `src`": sum(lines.values()),
        "files of the product": len(product),
        "lines of the product": sum(lines[name] for name in product),
        "files of the studies": len(modules) - len(product),
        "lines of the studies": sum(lines.values()) - sum(lines[name] for name in product),
        "modules with one importer": len(single_importers(modules)),
    }
    rows["files loaded on the walk"], rows["files run on the walk"] = map(len, walk(root, modules))
    for package, n_lines in sorted(lines_per_package(lines).items()):
        rows[f"lines of `{package}`"] = n_lines
    return rows


def find_modules(src: Path) -> dict[str, Path]:
    """Dotted name → file of every module below src."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_product(module: str) -> bool:
    """Whether a module belongs to what users install, not to the studies (grash.study before they moved out)."""
    return module.split(".")[0] == "grash" and not f"{module}.".startswith("grash.study.")


def single_importers(modules: dict[str, Path]) -> list[str]:
    """Modules that exactly one other module imports."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for imported in imports_of(path, modules):
            importers[imported].add(name)
    counted = (name for name, path in modules.items() if not is_empty(path))
    return sorted(name for name in counted if len(importers[name] - {name}) == 1)


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the tree that a file imports, lazily or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            found |= submodules or {node.module}
    return found & modules.keys()


def walk(root: Path, modules: dict[str, Path]) -> tuple[list[str], list[str]]:
    """The modules loaded, and those run, on the way from a TSV file to a prediction."""
    environment = {**os.environ, "PYTHONPATH": str((root / "src").resolve()), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", WALK], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise SystemExit(f"The walk of {root} failed:\n{done.stderr}")
    loaded, run = (
        sorted(name for name in line.split() if name in modules and not is_empty(modules[name]))
        for line in done.stdout.splitlines()[-2:]
    )
    return loaded, run


def lines_per_package(lines: dict[str, int]) -> Counter[str]:
    """Lines of each folder directly below `grash`, and of `grash_study`; `grash` itself holds the rest."""
    packages = {".".join(name.split(".")[:2]) for name in lines if name.count(".") >= 2}
    total: Counter[str] = Counter()
    for name, n_lines in lines.items():
        package = ".".join(name.split(".")[:2])
        total[package if package in packages else name.split(".")[0]] += n_lines
    return total


def is_empty(path: Path) -> bool:
    return path.name == "__init__.py" and not path.read_text(encoding="utf-8").strip()


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]] or [ROOT])
