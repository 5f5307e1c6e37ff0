"""The model card: README.md of a model folder, which people and the Hugging Face Hub show.

It is written from the content of model.json when a model is saved. It is not covered by the folder's checksums, so that
you can edit it, e.g. to add a license.
"""

from __future__ import annotations

from typing import Any

from grash import __version__
from grash.data.dataset import Dataset

CARD_FILE = "README.md"
_METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
_RUN_SETTINGS = ("model", "dim", "seed", "variation")  # in the title, or not about quality
_CARD = """---
library_name: grash
tags: [knowledge-graph, knowledge-graph-embedding, link-prediction, {model}]
---

# {title}

A knowledge graph embedding model, trained with grash {version}. It predicts missing triples (head, relation, tail) of
the graph that it was trained on; it knows no other entities.

## Data

| | |
|---|---|
| graph | {graph} |
| entities | {n_entities:,} |
| relations | {n_relations:,} |
| train, valid and test triples | {splits} |
| fingerprint | `{fingerprint}` |

The folder `dataset/` holds the names and all triples, so sharing the model shares the graph.

## Results

{results}

## Use it

```bash
pip install grash-kge
grash predict FOLDER --head NAME --relation NAME
```

```python
import grash

model = grash.load_model("FOLDER")
model.predict(head="NAME", relation="NAME", k=10)
```

The tables are in `embeddings.safetensors`. The folder contains no code.

## Settings

{settings}

## Limits

Scores rank answers; probabilities need a `calibration.json` in the folder. Answers follow the graph, with its errors
and gaps.

## License

Not set. Add the license of your graph and of this model here, and as `license:` at the top of this file.
"""


def model_card(record: dict[str, Any], dataset: Dataset) -> str:
    """Return the card of a model. record: the content of model.json."""
    config, name, model = record["config"], _plain(str(record["dataset"]["name"])), _plain(str(record["model"]))
    rows = {key: value for key, value in config.items() if key not in _RUN_SETTINGS}
    lines = [f"| {_plain(str(key))} | {_plain(str(value))} |" for key, value in rows.items()]
    return _CARD.format(
        model=model, title=f"{model}, {record['dim']} floats per entity, on {name}",
        version=__version__, graph=name, n_entities=dataset.n_entities, n_relations=dataset.n_relations,
        splits=", ".join(f"{len(part):,}" for part in (dataset.train, dataset.valid, dataset.test)),
        fingerprint=record["dataset"]["fingerprint"], results=_results(record.get("evaluation", {})),
        settings="\n".join(["| setting | value |", "|---|---|", *lines]) if lines else "Not recorded.",
    )  # fmt: skip


def _results(evaluation: dict[str, Any]) -> str:
    """Return the metrics of the test split as a table, or why there are none."""
    both = evaluation.get("both", {})
    if not isinstance(both, dict) or not all(name in both for name in _METRICS):
        return "The model was not tested."
    interval = evaluation.get("mrr_interval")
    low_high = f" (95 % interval {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    values = " | ".join([f"{both['mrr']:.4f}{low_high}", *(f"{both[name]:.4f}" for name in _METRICS[1:])])
    about = (
        f"Heads and tails of {evaluation.get('n_triples', 0):,} triples of the {evaluation.get('split')} split, "
        f"ranked among all entities; other known answers are left out."
    )
    return "\n".join([about, "", "| MRR | Hits@1 | Hits@3 | Hits@10 |", "|---|---|---|---|", f"| {values} |"])


def _plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is: one line, special characters as entities."""
    shown = "".join(c if c.isprintable() else " " for c in text[:200])
    return "".join(f"&#{ord(c)};" if c in "&<>|[]`*\\#$!" else c for c in shown)
