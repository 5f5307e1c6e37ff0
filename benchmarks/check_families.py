"""Measure what the portfolio loses without the published winners and prior of a graph's own family, on the tables.

    python benchmarks/check_families.py [--seeds 300] [TABLE.parquet ...]

Searches start with the pool members nearest to the portfolio's proposals (`grash_study/methods.py`), with and without
the family, or with random members. Printed: mean test MRR of the picks, and the mean difference with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from grash.search.proposals import all_winners, propose
from grash_study.confirm import PRIORS, family_of
from grash_study.methods import Method
from grash_study.recorded import Recorded
from grash_study.table import Table

TABLES = Path(__file__).parents[1] / "docs" / "results" / "tables"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, default=sorted(TABLES.glob("*.parquet")))
    parser.add_argument("--seeds", type=int, default=300)
    args = parser.parse_args()
    for path in args.tables:
        bench, family = Recorded(Table.load(path)), family_of(path.stem.partition("-complex")[0])
        others = [w for w in all_winners() if family_of(w["dataset"]) != family]
        without = {"winners": others, "prior": json.loads(PRIORS.read_text(encoding="utf-8"))[family]}
        full, left = picks(bench, args.seeds), picks(bench, args.seeds, without)
        random = picks(bench, args.seeds, how="random")
        half_width = 1.96 * (left - full).std() / np.sqrt(args.seeds)
        print(
            f"{path.stem}: portfolio {full.mean():.4f}, without {family} {left.mean():.4f}, "
            f"random {random.mean():.4f}; difference {(left - full).mean():+.4f} ± {half_width:.4f}",
            flush=True,
        )


def picks(bench: Recorded, seeds: int, portfolio: Mapping[str, Any] | None = None, how: str = "portfolio") -> Any:
    """Return (seeds,) test MRRs of the configurations that default searches at B = 3 pick."""
    method = Method("grash", "grash", {"how": how})
    with mock.patch("grash_study.methods.propose", partial(propose, portfolio=portfolio)):
        return np.array([method(bench, seed, 3.0).test_mrr(bench) for seed in range(seeds)])


if __name__ == "__main__":
    main()
