"""Write docs/reference/config.md from TrainConfig; tests/cli/test_commands.py compares the two."""

from pathlib import Path

from grash.cli.settings import reference_page

if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
    page.write_text(reference_page(), encoding="utf-8")
