"""Imports point down the layers only (docs/concepts/layers)."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "grash"

# A layer imports only from the layers before it, and freely within itself.
LAYERS = [
    ("errors", "files", "formatting", "keywords", "optional", "yaml_files"),
    ("kernels",),
    ("data",),
    ("reduction",),
    ("models",),
    ("training",),
    ("evaluation",),
    ("search",),
    ("engines",),
    ("interop", "report"),
    ("api",),
    ("serve",),
    ("cli", "__main__"),
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def imports_of(source: str) -> list[tuple[int, str]]:
    """(line, layer) of every import of grash in the source, lazy ones included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        found += [
            (node.lineno, m.split(".")[1]) for m in modules if m.startswith("grash.") and m != "grash.__version__"
        ]
    return found


def climbs(layer: str, source: str) -> list[str]:
    """A sentence for every import in the source that points up."""
    return [
        f":{line} imports {other}, which lies above {layer}"
        for line, other in imports_of(source)
        if other != layer and HEIGHT[other] > HEIGHT[layer]
    ]


def test_imports_point_down():
    complaints = []
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        if parts == ("__init__",):
            continue
        complaints += [f"{path.relative_to(SRC)}{c}" for c in climbs(parts[0], path.read_text())]
    assert not complaints, "\n".join(complaints)


def test_a_climbing_import_is_noticed():
    assert climbs("data", "from grash.models import complex") == [":1 imports models, which lies above data"]
    assert climbs("models", "def f():\n    import grash.training.loop") == [
        ":2 imports training, which lies above models"
    ]
    assert climbs("models", "from grash.data.dataset import Dataset") == []
