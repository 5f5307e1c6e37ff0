"""Write docs/reference/config.md from the settings of a training; tests/cli/test_commands.py compares."""

from pathlib import Path

from grash.cli.train import setting_rows

PATH = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
PAGE = """# Settings of a training

All settings are in one flat record, `grash.TrainConfig`. Give a setting as a line `name: value` in a YAML file
(`grash train --config FILE`), as an option (`--set name=value`), or as a keyword of `grash.train`. `grash settings`
prints this table. `none` is `null` in YAML and `None` in Python. `python tools/make_config_reference.py` writes this
page.

| setting | values | default | meaning |
|---|---|---|---|
{table}

Settings that contradict each other are an error, e.g. `label_smoothing` without `training: kvsall`, or `penalty: dura`
with a distance model.
"""


def reference_page() -> str:
    """Return the content of docs/reference/config.md."""
    return PAGE.format(table="\n".join(f"| `{name}` | {' | '.join(more)} |" for name, *more in setting_rows()))


if __name__ == "__main__":
    PATH.write_text(reference_page(), encoding="utf-8")
    print(PATH)
