"""How well one round foretells the next: ranks and their correlation, in plain Python."""

from __future__ import annotations

import math

from grash.search.state import RoundState, SearchState


def ranking(past: RoundState) -> list[int]:
    """Configurations of a round, best first."""
    return past.best(len(past.results))


def correlations(state: SearchState) -> list[str | None]:
    """Between each round and the next: Spearman's ρ over the configurations that both have scored, in words."""
    said: list[str | None] = []
    for before, after in zip(state.rounds, state.rounds[1:]):
        both = [n for n in ranking(after) if n in before.results and before.results[n].mrr is not None]
        rho = spearman([before.results[n].mrr or 0.0 for n in both], [after.results[n].mrr or 0.0 for n in both])
        said.append(None if rho is None else f"ρ\u00a0=\u00a0{rho:.2f}\u00a0({len(both)})")
    return said


def spearman(first: list[float], second: list[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three pairs or where one side is constant."""
    if len(first) < 3:
        return None
    a, b = mean_ranks(first), mean_ranks(second)
    middle = (len(a) + 1) / 2
    up = sum((p - middle) * (q - middle) for p, q in zip(a, b))
    down = math.sqrt(sum((p - middle) ** 2 for p in a) * sum((q - middle) ** 2 for q in b))
    return up / down if down else None


def mean_ranks(values: list[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            ranks[i] = (at + 1 + end) / 2
        at = end
    return ranks
