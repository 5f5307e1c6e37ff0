"""KGTuner's walk against cores: how well each predicts full training, from the scores of `grash study transfer`.

python benchmarks/check_walk.py    # rank correlations, their differences, and what a first round on each loses
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from grash_study.statistics import rho_difference, spearman

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGES = (
    "codex-s-complex-d128-paper-e100-s0",
    "fb15k-237-complex-d128-paper-e50-s0",
    "wn18rr-complex-d128-paper-e100-s0",
)
CORES = {"k-core": "ladder", "core order": "chain"}  # as these pages name them
N, KEPT, DRAWS = 64, 16, 4000  # a first round of 64 configurations, of which a quarter advances


def compared(page: str) -> None:
    """Print a line per budget: ρ of the walk and of cores, the paired differences, and what is lost."""
    scores = pl.read_parquet(RESULTS / f"transfer-{page}.parquet").filter(pl.col("counted") == 1)
    print(page)
    for budget in sorted(scores["budget"].unique()):
        at = scores.filter(pl.col("budget") == budget)
        found = {t: at.filter(pl.col("technique") == t).sort("configuration") for t in ("kgtuner", *CORES.values())}
        walk, full, test = (found["kgtuner"][c].to_numpy() for c in ("score", "full_valid_mrr", "full_test_mrr"))
        cells = [f"walk {spearman(walk, full).rho:.2f} (loses {lost(walk, full, test):.4f})"]
        for name, technique in CORES.items():
            core = found[technique]["score"].to_numpy()
            assert (found[technique]["configuration"] == found["kgtuner"]["configuration"]).all()
            c = rho_difference(walk, core, full)
            cells.append(f"{name} {spearman(core, full).rho:.2f} (loses {lost(core, full, test):.4f})")
            cells.append(f"walk less {name} {c.rho:+.2f} [{c.low:+.2f}, {c.high:+.2f}]")
        print(f"  1/{round(1 / budget)}: {'; '.join(cells)}")


def lost(scores: np.ndarray, full: np.ndarray, test: np.ndarray) -> float:
    """Return the test MRR that is lost on average if the best KEPT of N by these scores advance and the best of them by
    full validation wins, instead of the best of all N."""
    generator, losses = np.random.default_rng(0), []
    for _ in range(DRAWS):
        drawn = generator.choice(len(scores), N, replace=False)
        kept = drawn[np.argsort(-scores[drawn], kind="stable")[:KEPT]]
        losses.append(test[drawn[np.argmax(full[drawn])]] - test[kept[np.argmax(full[kept])]])
    return float(np.mean(losses))


if __name__ == "__main__":
    for page in PAGES:
        compared(page)
