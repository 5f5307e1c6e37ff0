"""Compare rules that choose among the finalists of a search, on the published tables (decisions 0043, 0061 to 0065).

    python benchmarks/check_finalists.py [--rules] [TABLE.parquet ...]

2,000 searches per table: 64 of its configurations on 1/8, 1/4 and 1/2 of the graph and of the epochs, the best quarter
advances. Then each rule picks one of the four finalists; printed are the test MRR of its full training relative to the
best finalist's (mean and 2 % quantile, over all tables) and what the rule costs, in full trainings. `--rules` compares
`trend` and `last_round_holdout` where finalists are compared as in a search: test MRR relative to the best of the 64.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

Scores = NDArray[np.float64]
TABLES = Path(__file__).parents[1] / "docs" / "results" / "tables"
SHARES = (0.0441941738, 0.125, 0.25)  # of the epochs, on the full graph
AGAIN = ((2, 1.0), (3, 0.0), (3, 0.5), (3, 1.0))  # finalists compared again at half of the epochs; weight of their rise
CLOSE = 0.16  # relative to the best finalist after the first comparison
END = 0.04  # relative to the best one after the second comparison
LEADER = (0.0, 0.16, 0.32, 1.0)  # how far behind the leader of the last round is still trained to the end
MARGINS = (0.02, 0.04, 1.0)  # relative to the best score of the last round; 1: all four
TRENDS = ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5))  # in the first two rounds, and in the last one
N_SEARCHES = 2000


class Table:
    """Validation and test MRRs (n,) of a pool, by graph fraction and epoch fraction."""

    def __init__(self, path: Path) -> None:
        self.rows = pl.read_parquet(path).filter(pl.col("number") >= 0)
        self.isolated_column = self.rows.columns[3]  # its name differs between tables
        self.n = self.rows["number"].n_unique()

    def mrr(self, graph: float, epochs: float, *, isolated: bool = False, test: bool = False) -> Scores:
        near = (pl.col("graph_fraction") - graph).abs() < 1e-6
        near &= (pl.col("epoch_fraction") - epochs).abs() < 1e-6
        chosen = self.rows.filter(near & (pl.col(self.isolated_column) == isolated))
        chosen = chosen.unique("number", keep="last", maintain_order=True).sort("number")
        return chosen["test_mrr" if test else "valid_mrr"].fill_nan(0.0).to_numpy()

    @property
    def has_isolated(self) -> bool:
        return len(self.mrr(0.5, 0.5, isolated=True)) == self.n


def best(members: list[int], scores: Scores, count: int) -> list[int]:
    return [members[i] for i in np.argsort(-scores[members], kind="stable")[:count]]


def compare(table: Table) -> dict[str, list[tuple[float, float]]]:
    """Return (share of the best finalist's test MRR, cost) of every search, by rule."""
    isolated = table.has_isolated
    first, second, last = table.mrr(0.125, 0.125), table.mrr(0.25, 0.25), table.mrr(0.5, 0.5, isolated=isolated)
    truth, middle, end = table.mrr(1.0, 1.0, test=True), table.mrr(1.0, 0.5), table.mrr(1.0, 1.0)
    full = {e: table.mrr(1.0, e) for e in SHARES}
    half = {e: table.mrr(0.5, e, isolated=isolated) for e in SHARES}
    rng, found = np.random.default_rng(1), dict[str, list[tuple[float, float]]]()
    for _ in range(N_SEARCHES):
        entered = list(rng.permutation(table.n)[:64])
        finalists = best(best(best(entered, first, 16), second, 4), last, 4)
        top = truth[finalists].max()
        found.setdefault("winner of the last round", []).append((truth[finalists[0]] / top, 0.0))
        for e in SHARES:
            pick = best(finalists, full[e], 1)[0]
            found.setdefault(f"highest MRR after {e:.3f}", []).append((truth[pick] / top, 3 * e))
            ratio = last * full[e] / np.maximum(half[e], 1e-3)
            for margin in MARGINS:
                close = [i for i in finalists if last[i] >= (1 - margin) * last[finalists[0]]]
                cost = (len(close) - 1) * e
                pick = best(close, ratio, 1)[0]
                found.setdefault(f"ratio after {e:.3f}, within {margin:.0%}", []).append((truth[pick] / top, cost))
        ratio = last * full[0.125] / np.maximum(half[0.125], 1e-3)
        within = [i for i in finalists if last[i] >= 0.96 * last[finalists[0]]]
        for count, trend in AGAIN:
            close = best(within, ratio, count)
            close = [i for i in close if ratio[i] >= (1 - CLOSE) * ratio[close[0]]]
            cost = (len(within) - 1) * 0.125 + (len(close) - 1) * 0.375
            score = middle + trend * np.maximum(0.0, middle - full[0.25])
            pick = best(close, score, 1)[0]
            name = f"the closest {count} again, trend {trend}"
            found.setdefault(name, []).append((truth[pick] / top, cost))
            ends = best(close, score, 2)
            ends = [i for i in ends if score[i] >= (1 - END) * score[pick]]
            cost += 0.5 * (len(ends) - 1)
            found.setdefault(f"{name}, 2 to the end", []).append((truth[best(ends, end, 1)[0]] / top, cost))
            leader = finalists[0]
            for margin in LEADER:
                again = close if leader in close else [*close[: count - 1], leader]
                cost = (len(within) - 1) * 0.125 + (len(again) - 1) * 0.375
                ends = [i for i in best(again, score, 2) if score[i] >= (1 - END) * score[again].max()]
                if leader not in ends and score[leader] >= (1 - margin) * score[again].max():
                    ends = [ends[0], leader]
                cost += 0.5 * (len(ends) - 1)
                rule = f"{name}, 2 and the leader within {margin:.0%}"
                found.setdefault(rule, []).append((truth[best(ends, end, 1)[0]] / top, cost))
        pick = best(within, end, 1)[0]
        found.setdefault("all within 4 % in full", []).append((truth[pick] / top, len(within) - 1.0))
    return found


def compare_rules(table: Table) -> dict[str, list[float]]:
    """Return the share of the best test MRR among the 64 of every search, by rule."""
    truth, found = table.mrr(1.0, 1.0, test=True), dict[str, list[float]]()
    for isolated, (early, last), finalists in itertools.product((True, False), TRENDS, (True, False)):
        held_out = isolated and table.has_isolated
        scores = []
        for part, weight in ((0.125, early), (0.25, early), (0.5, last)):
            hold = held_out and part == 0.5
            end, half = table.mrr(part, part, isolated=hold), table.mrr(part, part / 2, isolated=hold)
            scores.append(end + weight * np.maximum(0.0, end - half))
        full = table.mrr(1.0, 0.125) / np.maximum(table.mrr(0.5, 0.125, isolated=held_out), 1e-3)
        rng, shares = np.random.default_rng(1), []
        for _ in range(N_SEARCHES):
            entered = list(rng.permutation(table.n)[:64])
            order = best(best(best(entered, scores[0], 16), scores[1], 4), scores[2], 4)
            close = [i for i in order if scores[2][i] >= 0.96 * scores[2][order[0]]]
            pick = best(close, scores[2] * full, 1)[0] if finalists else order[0]
            shares.append(float(truth[pick] / truth[entered].max()))
        name = f"{'match_valid' if isolated else 'random':11}, trend {early}, in the last round {last}"
        found[f"{name}{', finalists' if finalists else ''}"] = shares
    return found


def main_rules(paths: list[Path]) -> None:
    tables = [compare_rules(Table(path)) for path in paths]
    for rule in tables[0]:
        shares = [np.array(table[rule]) for table in tables]
        quantile = np.mean([np.quantile(s, 0.02) for s in shares])
        each = " ".join(f"{s.mean():.4f}" for s in shares)
        print(f"{rule:56} {each}  mean {np.mean([s.mean() for s in shares]):.4f}  2 % {quantile:.4f}")


def main(paths: list[Path]) -> None:
    tables = [compare(Table(path)) for path in paths]
    print("tables:", ", ".join(path.stem for path in paths))
    for rule in tables[0]:
        shares = [np.array([share for share, _ in table[rule]]) for table in tables]
        quantile = np.mean([np.quantile(s, 0.02) for s in shares])
        cost = np.mean([c for table in tables for _, c in table[rule]])
        each = " ".join(f"{s.mean():.4f}" for s in shares)
        print(f"{rule:43} {each}  mean {np.mean([s.mean() for s in shares]):.4f}  2 % {quantile:.4f}  cost {cost:.2f}")


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:] if argument != "--rules"] or sorted(TABLES.glob("*.parquet"))
    (main_rules if "--rules" in sys.argv else main)(given)
