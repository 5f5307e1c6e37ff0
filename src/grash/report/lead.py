"""Who goes first in a round, and why: MRR decides, and how it was still rising (docs/decisions/0033).

The two can disagree. What people read then says both: whose MRR is the highest, and why another goes before it.
"""

from __future__ import annotations

from grash.report.correlation import ranking
from grash.search.state import RoundState
from grash.search.trial import Result


def highest(past: RoundState) -> Result | None:
    """The trial with the highest MRR of a round; of equals the one that goes first."""
    ranked = [past.results[n] for n in ranking(past)]
    return max(ranked, key=lambda result: result.mrr or 0.0, default=None)


def higher_than(past: RoundState, first: Result) -> Result | None:
    """The trial with the highest MRR of the round, where `first` goes before it because it was still rising."""
    best = highest(past)
    if best is None or (best.mrr or 0.0) <= (first.mrr or 0.0) or best.rise >= first.rise:
        return None
    return best


def difference(past: RoundState) -> str:
    """On the best of a round beside the others: by how much, whether that may be chance, and what decided."""
    order = ranking(past)
    first = past.results[order[0]]
    said = f"MRR {first.mrr:.4f} in round {past.plan.number}, on {past.plan.n_valid:,} validation triples."
    if len(order) < 2 or first.interval is None:
        return said + _why(past, first)
    others = [past.results[n] for n in order[1:]]
    lead = (first.mrr or 0.0) - (others[0].mrr or 0.0)
    by = f"is {lead:.4f} behind" if lead >= 0 else f"has {-lead:.4f} more"
    said += f" The runner-up, configuration {others[0].number}, {by}"
    close = sum(other.interval is not None and other.interval[1] >= first.interval[0] for other in others)
    if close:
        are = "is" if close == 1 else "are"
        said += f"; {close} of the {len(others)} others {are} within the intervals, so the lead may be chance."
    else:
        said += ", and its interval lies below the winner's." if lead >= 0 else "."
    return said + _why(past, first)


def _why(past: RoundState, first: Result) -> str:
    """Why another with a higher MRR does not go first; nothing where none has."""
    higher = higher_than(past, first)
    if higher is None:
        return ""
    return (
        f" Configuration {first.number} goes before configuration {higher.number} ({higher.mrr:.4f}) because its MRR "
        f"was still rising: {past.plan.trend:g} of the rise between the last two validations counts (`trend`)."
    )
