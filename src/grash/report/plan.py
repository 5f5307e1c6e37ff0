"""The plan of a search as a text table, for `grash plan` and `print(search.plan())`."""

from __future__ import annotations

from grash.engines.plan import Implementation, PlannedRound, SearchPlan
from grash.formatting import format_bytes

_HEADINGS = (
    "round", "trials", "fidelity", "epochs", "steps", "k", "entities", "relations", "train", "of target", "valid",
    "negatives", "cost", "seconds", "memory", "disk",
)  # fmt: skip


def plan_table(plan: SearchPlan) -> str:
    """Return the table of rounds, followed by notes."""
    rows = [_HEADINGS, *(_row(planned, plan.n_train) for planned in plan.all_rounds)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    unspent = max(0.0, plan.budget - plan.billed)
    lines.append(f"billed: {plan.billed:.4g} of {plan.budget:g} full runs, {unspent:.4g} unspent")
    if plan.seconds is not None:
        lines.append(f"about {plan.seconds:,.0f} s of computing, one trial after another, measured by a probe")
    lines += _implementation_lines(plan)
    lines += [f"round {planned.plan.number}: {note}" for planned in plan.rounds for note in planned.plan.notes]
    return "\n".join([*lines, *plan.notes])


def implementation_sentence(choice: Implementation) -> str:
    parts = []
    if choice.fused:
        parts.append(f"{choice.fused} use the fused step, {choice.stack_size} together")
    if choice.unfused:
        why = "; ".join(f"{reason} ({count})" for reason, count in choice.reasons)
        parts.append(f"{choice.unfused} use the unfused implementation: {why}")
    return ", ".join(parts)


def _row(planned: PlannedRound, n_train: int) -> tuple[str, ...]:
    p = planned.plan
    return (
        str(p.number or "final"), f"{planned.n_trials:,}", f"{p.fidelity:.4g}", f"{p.epochs:.3g}",
        f"{planned.steps:,}", "–" if p.k is None else str(p.k), f"{p.n_entities:,}", f"{p.n_relations:,}",
        f"{p.n_train:,}", f"{p.n_train / n_train:.4f} of {p.graph_fraction:.4f}", f"{p.n_valid:,}",
        f"{planned.negatives[0]}–{planned.negatives[1]}",
        f"{planned.billed:.4g}" if planned.billed else "outside",
        "–" if planned.seconds is None else f"{planned.seconds:,.0f}",
        format_bytes(planned.n_bytes), format_bytes(planned.disk_bytes),
    )  # fmt: skip


def _implementation_lines(plan: SearchPlan) -> list[str]:
    """Return whether trials use the fused step; one line if none does, for the same reasons."""
    choices = [planned.implementation for planned in plan.all_rounds]
    reasons = {tuple(reason for reason, _ in choice.reasons) for choice in choices}
    if len(reasons) == 1 and not any(choice.fused for choice in choices):
        return [f"all trials use the unfused implementation: {'; '.join(*reasons)}"]
    names = [f"round {planned.plan.number}" if planned.plan.number else "final" for planned in plan.all_rounds]
    return [f"{name}: {implementation_sentence(choice)}" for name, choice in zip(names, choices)]
