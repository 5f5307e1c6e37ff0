"""tools/count_code.py counts a small tree correctly."""

from __future__ import annotations

from pathlib import Path

from docs.test_reference import tool


def test_a_small_tree_is_counted_as_by_hand(tmp_path: Path) -> None:
    counted = tool("count_code")
    sources = {
        "grash/__init__.py": "",
        "grash/names.py": "A = 1\n",
        "grash/data/__init__.py": "",
        "grash/data/one.py": "from grash import names\n",
        "grash/data/two.py": "from grash.data.one import names\nfrom grash.names import A\n",
        "grash_study/run.py": "def run():\n    import grash.names\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    modules = counted.find_modules(tmp_path)
    assert sorted(modules) == [
        "grash",
        "grash.data",
        "grash.data.one",
        "grash.data.two",
        "grash.names",
        "grash_study.run",
    ]
    assert counted.single_importers(modules) == ["grash.data.one"]
    assert [name for name in modules if not counted.is_product(name)] == ["grash_study.run"]
    lines = {name: path.read_text().count("\n") for name, path in modules.items()}
    assert counted.lines_per_package(lines) == {"grash": 1, "grash.data": 3, "grash_study": 2}
