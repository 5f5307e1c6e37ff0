"""Fit the prior in src/grash/search/portfolio.json to its winners and to published tuning trials:

    python tools/fit_prior.py FOLDER
    python tools/fit_prior.py FOLDER --without-families    # src/grash_study/priors.json, for `grash study confirm`

FOLDER contains fb15k-237.csv and wnrr.csv, the 2 × 1,075 training runs of Ruffinelli et al. (ICLR 2020). The best tenth
of each model and dataset by validation MRR counts as good. Winners and trials have the same total weight. For numbers
the prior is a widened kernel estimate, stored as quantiles; for choices it is shares, mixed with uniform ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from grash.files import atomic_file
from grash.search.proposals import all_winners, good_winners
from grash_study.confirm import PRIORS, family_of

PORTFOLIO = Path(__file__).parents[1] / "src" / "grash" / "search" / "portfolio.json"
GOOD_SHARE = 0.1
OFF_BELOW = 1e-6  # a penalty's weight that does nothing
WIDER = 1.5
UNIFORM_SHARE = 0.25
N_QUANTILES = 21
DATASETS = {"fb15k-237": "fb15k-237", "wnrr": "wn18rr"}  # their names in the trials and in the portfolio
SOURCES = {
    "complex": ("complex",), "distmult": ("distmult",), "rescal": ("rescal",), "transe": ("transe",),
    "rotate": ("rotate", "transe"),
}  # fmt: skip
# Numbers, with the least width of a kernel: in decades, and on a linear scale.
LOG = {
    "lr": 0.2,
    "init_std": 0.5,
    "penalty_entity": 0.5,
    "penalty_relation": 0.5,
    "negatives_head": 0.3,
    "negatives_tail": 0.3,
    "relation_prediction": 0.3,
}
LINEAR = {"init_low": 0.2, "dropout_entity": 0.05, "dropout_relation": 0.05}
# What the trials and the winners chose from.
CHOICES: dict[str, tuple[Any, ...]] = {
    "init": ("xavier_normal", "xavier_uniform", "normal", "uniform"),
    "penalty": ("none", "l1", "l2", "l3", "n3"),
    "training": ("negative_sampling", "1vsall", "kvsall"),
    "reciprocal": (False, True),
    "dim": (128, 256, 512),
    "batch_size": (128, 256, 512, 1024),
    "optimizer": ("adagrad", "adam"),
    "norm": (1, 2),
}
RATES = ("adagrad", "adam")

Row = tuple[float, dict[str, Any]]  # weight, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-families", action="store_true")
    given = parser.parse_args()
    if given.without_families:
        families = sorted({family_of(w["dataset"]) for w in all_winners()})
        lines = [f"  {json.dumps(f)}: {json.dumps(fit(given.folder, without=f))}" for f in families]
        PRIORS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    content = json.loads(PORTFOLIO.read_text(encoding="utf-8"))
    content["prior"] = fit(given.folder)
    with atomic_file(PORTFOLIO) as aside:
        aside.write_text(text_of(content), encoding="utf-8")


def fit(folder: Path, *, without: str = "") -> dict[str, Any]:
    """Return the prior by model and setting: quantiles or weights. without: a family of graphs to leave out."""
    trials = good_trials(folder, without)
    winners: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for winner in (w for w in good_winners() if family_of(w["dataset"]) != without):
        winners[winner["model"]].append(weighted(dict(winner["values"]), winner))
    prior = {}
    for model, sources in SOURCES.items():
        groups = [[v for s in sources for v in origin[s]] for origin in (winners, trials)]
        rows = [(1.0 / len(group), tidy(values)) for group in groups for values in group]
        prior[model] = distributions_of(rows)
    return prior


def good_trials(folder: Path, without: str = "") -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for stem, dataset in ((s, d) for s, d in DATASETS.items() if family_of(d) != without):
        sizes = next(w for w in all_winners() if w["dataset"] == dataset)
        by_model = defaultdict(list)
        with (folder / f"{stem}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                by_model[row["model"]].append(row)
        for model, rows in by_model.items():
            rows.sort(key=lambda row: -float(row["fil_mrr"]))
            best = rows[: math.ceil(GOOD_SHARE * len(rows))]
            found[model] += [weighted(values_of(row), sizes) for row in best]
    return found


def values_of(row: dict[str, str]) -> dict[str, Any]:
    """Return the settings of a trial by our names."""
    values: dict[str, Any] = {
        "lr": float(row["train_lr"]),
        "optimizer": row["train_optimizer"].lower(),
        "init": row["emb_initialize"].removesuffix("_"),
        "dropout_entity": max(float(row["emb_e_dropout"]), 0.0),
        "dropout_relation": max(float(row["emb_r_dropout"]), 0.0),
        "training": row["train_type"].lower(),
        "reciprocal": row["reciprocal"] == "1",
        "dim": int(row["emb_e_dim"]),
        "batch_size": int(row["train_batch_size"]),
        "penalty": f"l{row['emb_regularize_p']}" if row["emb_regularize"] else "none",
    }
    values |= {"init_std": float(row["emb_initialize_normal_std"])} if values["init"] == "normal" else {}
    values |= {"init_low": float(row["emb_initialize_uniform_interval"])} if values["init"] == "uniform" else {}
    if values["penalty"] != "none":
        twice = 1 if row["emb_regularize_weighted"] == "1" else 2  # LibKGE penalizes an unweighted table twice
        values["penalty_weighted"] = row["emb_regularize_weighted"] == "1"
        values["penalty_entity"] = twice * float(row["emb_e_regularize_weight"])
        values["penalty_relation"] = float(row["emb_r_regularize_weight"])
    if row["num_negs_s"]:  # missing in some runs
        values |= {"negatives_head": int(row["num_negs_s"]), "negatives_tail": int(row["num_negs_o"])}
    return values | ({"norm": int(row["transe_l_norm"])} if row["transe_l_norm"] else {})


def weighted(values: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Return values with an unweighted penalty in the scale of a weighted one (as in search/proposals.py)."""
    if not values.get("penalty_weighted", True):
        values["penalty_entity"] *= sizes["n_entities"] / 2
        values["penalty_relation"] *= sizes["n_relations"]
    return values


def tidy(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with weights that have no effect set to 0, and no penalty if both are 0."""
    sides = ("penalty_entity", "penalty_relation")
    for side in sides:
        if values.get(side, 0.0) < OFF_BELOW:
            values[side] = 0.0
    if not any(values[side] for side in sides):
        values["penalty"] = "none"
    if values["penalty"] == "none":
        values = {n: v for n, v in values.items() if n not in sides}
    return values


def distributions_of(rows: list[Row]) -> dict[str, Any]:
    distributions: dict[str, Any] = {}
    for name in (*LOG, *LINEAR):
        if name == "lr":
            given = {rate: [r for r in rows if r[1].get("optimizer", "adagrad") == rate] for rate in RATES}
            distributions[name] = {
                "given": "optimizer",
                "distributions": {k: number_distribution(name, r) for k, r in given.items() if r},
            }
        elif any(values.get(name) for _, values in rows):  # at least one that is not off
            distributions[name] = number_distribution(name, rows)
    for name in CHOICES:
        known = [(w, values[name]) for w, values in rows if name in values]
        if known:
            distributions[name] = {"weights": shares(known, CHOICES[name])}
    return distributions


def number_distribution(name: str, rows: list[Row]) -> dict[str, Any]:
    """Return quantiles of a widened kernel estimate (of log10 with `log`), and the share that is 0."""
    known = [(w, float(values[name])) for w, values in rows if name in values]
    can_be_off = name.startswith(("penalty", "dropout", "relation"))
    off = sum(w for w, v in known if v == 0) / sum(w for w, _ in known) if can_be_off else 0.0
    kept = [(w, v) for w, v in known if v != 0]
    weights = np.array([w for w, _ in kept]) / sum(w for w, _ in kept)
    values = np.array([math.log10(v) if name in LOG else v for _, v in kept])
    spread = math.sqrt(float(weights @ (values - weights @ values) ** 2))
    n_effective = 1.0 / float(weights @ weights)
    width = max(WIDER * 1.06 * spread * n_effective**-0.2, LOG.get(name, LINEAR.get(name, 0.0)))
    grid = np.linspace(values.min() - 4 * width, values.max() + 4 * width, 4001)
    erf = np.vectorize(math.erf)
    below = (0.5 + 0.5 * erf((grid[:, None] - values) / (width * math.sqrt(2)))) @ weights
    levels = np.linspace(0.0, 1.0, N_QUANTILES)
    levels[[0, -1]] = 0.002, 0.998
    quantiles = [float(f"{q:.4g}") for q in np.interp(levels, below, grid)]
    mixed = (1 - UNIFORM_SHARE) * off + UNIFORM_SHARE * 0.5 if can_be_off else 0.0
    return {"log": name in LOG, "off": round(mixed, 3), "quantiles": quantiles}


def shares(known: list[tuple[float, Any]], values: tuple[Any, ...]) -> list[list[Any]]:
    total = sum(w for w, _ in known)
    each = [sum(w for w, other in known if other == v) / total for v in values]
    return [[v, round((1 - UNIFORM_SHARE) * w + UNIFORM_SHARE / len(values), 3)] for v, w in zip(values, each)]


def text_of(content: dict[str, Any]) -> str:
    """Return JSON with one winner, and one prior, per line."""
    head = {k: v for k, v in content.items() if k not in ("winners", "prior")}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
    winners = ",\n".join(f"    {json.dumps(w)}" for w in content["winners"])
    models = ",\n".join(
        f"    {json.dumps(model)}: {{\n"
        + ",\n".join(
            f"      {json.dumps(name)}: {json.dumps(distribution)}" for name, distribution in distributions.items()
        )
        + "\n    }"
        for model, distributions in content["prior"].items()
    )
    return "\n".join(["{", *lines, f'  "winners": [\n{winners}\n  ],', f'  "prior": {{\n{models}\n  }}', "}", ""])


if __name__ == "__main__":
    main()
