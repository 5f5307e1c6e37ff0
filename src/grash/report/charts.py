"""The charts of the report. Each function returns one SVG of the given width, or None if there is nothing to draw.

Rounds, ranks, learning curves and costs come first, then the charts of the searched parameters. A configuration is
labeled with its number, e.g. "#12".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grash.errors import InputError
from grash.formatting import format_duration, format_number
from grash.report.importance import SearchedParameter, round_correlations
from grash.report.summary import n_entrants, ranked
from grash.report.svg import (
    CHARACTER,
    Scale,
    bar,
    dot,
    drawing,
    frame,
    label,
    line,
    path,
    scale_over,
    tag,
    ticks_of,
)
from grash.search.ledger import RoundState, SearchState
from grash.search.trial import TrialResult

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.reduction.subgraph import CoreOrder

_STACKED_BELOW = 480  # px; in a narrower chart, panels are stacked
_MOST_BARS = 14
_PANEL_HEIGHT = 168.0  # px, of a panel of `slices`
_OFF_WIDTH = 34.0  # px, left of the range, for values that are off
_CORE_ORDER_STYLE = (
    "svg{background:#fff;font:12px sans-serif}text{fill:#555}path{fill:none;stroke:currentColor;stroke-width:1.8}"
    "circle{fill:currentColor}.key{fill:currentColor}.grid{stroke:#eee}.axis,.guide{stroke:#999}"
    ".train{color:#4d4d4d}.entity{color:#0077bb}.relation{color:#009988}.core{color:#cc3311}"
)


def funnel(state: SearchState, width: int) -> str | None:
    """Draw bars for each round: trials, entities, triples, epochs and cost."""
    if not state.rounds:
        return None
    measures = {
        "trials": [float(n_entrants(state, r.plan.number)) for r in state.rounds],
        "entities": [float(r.plan.n_entities) for r in state.rounds],
        "triples": [float(r.plan.n_train) for r in state.rounds],
        "epochs": [r.plan.epochs for r in state.rounds],
        "cost, full runs": [r.cost for r in state.rounds],
    }
    full = {"entities": state.dataset.get("n_entities"), "triples": state.dataset.get("n_train")}
    columns = 1 if width < _STACKED_BELOW else len(measures)
    left, row, top = 62.0, 30.0, 34.0
    panel = (width - left) / columns
    height = (top + row * len(state.rounds) + 10) * (len(measures) // columns)
    drawn = []
    for i, (name, figures) in enumerate(measures.items()):
        x0, y0 = left + panel * (i % columns), (top + row * len(state.rounds) + 10) * (i // columns)
        most = max(*figures, float(full.get(name) or 0)) or 1.0
        drawn.append(label(name, x0, y0 + 18, cls="head"))
        for r, value in enumerate(figures):
            y, length = y0 + top + row * r, (panel - 66) * value / most
            if i % columns == 0:
                drawn.append(label(f"round {r + 1}", 0, y + 15, cls="name"))
            whole = full.get(name)
            tip = f"round {r + 1}: {value:,.4g} {name}" + (f", {value / whole:.0%} of the graph" if whole else "")
            track = (panel - 66) * whole / most if whole else 0.0
            drawn += [tag("rect", x=x0, y=y, width=track, height=20, rx=2, cls="track")] if whole else []
            drawn.append(bar(x0, y, length, 20, f"r{_tone(r, state)}", data_tip=tip))
            drawn.append(label(format_number(value), x0 + max(length, track, 1) + 6, y + 15, cls="value"))
    return drawing(drawn, width, height, "Trials, entities, triples, epochs and cost of each round")


def rank_flow(state: SearchState, width: int) -> str | None:
    """Draw the ranks of the trials in each round, best at the top; lines follow configurations that advanced."""
    rounds = [(r, ranked(r)) for r in state.rounds if r.results]
    if not rounds or not rounds[0][1]:
        return None
    left, right, top, bottom = 44.0, width - 52.0, 46.0, 372.0
    columns = [left if len(rounds) == 1 else left + (right - left) * i / (len(rounds) - 1) for i in range(len(rounds))]
    points = [_column(order, x, top, bottom) for (_, order), x in zip(rounds, columns)]
    drawn = [label("best", 0, top + 4, cls="tick"), label("worst", 0, bottom + 4, cls="tick")]
    best = _best_configuration(state)
    for i, (r, order) in enumerate(rounds):
        drawn.append(_column_head(r, columns[i], i == 0 and len(rounds) > 1, i == len(rounds) - 1))
        for n in reversed(order):
            if i + 1 < len(rounds) and n in points[i + 1]:
                drawn.append(_curve(points[i][n], points[i + 1][n], _role(n, best), n))
    for i, (r, order) in enumerate(rounds):
        for n in reversed(order):
            x, y = points[i][n]
            text = _tip(state, r.results[n], f"rank {order.index(n) + 1} of {len(order)} in round {i + 1}")
            size = 5.0 if n == best else 3.4
            drawn.append(dot(x, y, size, f"r{_tone(i, state)} {_role(n, best)}", data_tip=text, data_c=n))
    for n, (x, y) in list(points[-1].items())[:12]:
        drawn.append(label(f"#{n}", x + 10, y + 4, cls="name strong" if n == best else "name", data_c=n))
    for i, rho in enumerate(round_correlations(state)):
        if i + 1 < len(columns) and rho is not None:
            drawn.append(label(rho, (columns[i] + columns[i + 1]) / 2, bottom + 30, cls="tick", text_anchor="middle"))
    return drawing(drawn, width, bottom + 40, "How the ranks of configurations change from round to round")


def learning_curves(state: SearchState, width: int) -> str | None:
    """Draw validation MRR over epochs: one panel per round and one for the final training."""
    panels = [(f"round {r.plan.number}", list(r.results.values())) for r in state.rounds]
    panels += [("final training", [state.final])] if state.final is not None else []
    panels = [(name, [r for r in results if r.history]) for name, results in panels]
    panels = [(name, results) for name, results in panels if results]
    if not panels:
        return None
    columns = 1 if width < _STACKED_BELOW else min(len(panels), 4)
    panel, height = width / columns, 216.0
    best = _best_configuration(state)
    drawn = []
    for i, (name, results) in enumerate(panels):
        x0, y0 = panel * (i % columns), height * (i // columns)
        epochs = [v["epoch"] for r in results for v in r.history]
        x = Scale(0.0, max(epochs) * 1.04, x0 + 42, x0 + panel - 14)
        y = scale_over([v["mrr"] for r in results for v in r.history], y0 + height - 42, y0 + 30)
        drawn.append(label(name, x.start, y0 + 16, cls="head"))
        drawn += frame(x, y, xs=ticks_of(x, 4), ys=ticks_of(y, 4))
        drawn.append(label("epoch", x.end, y0 + height - 8, cls="tick", text_anchor="end"))
        for r in sorted(results, key=lambda r: (r.number == best, r.mrr or 0.0)):
            points = [(x(v["epoch"]), y(v["mrr"])) for v in r.history]
            drawn.append(path(points, f"curve {_role(r.number, best)}", data_tip=_tip(state, r, name), data_c=r.number))
    return drawing(drawn, width, height * -(-len(panels) // columns), "Validation MRR over epochs")


def cost_against_time(state: SearchState, width: int) -> str | None:
    """Draw billed cost against measured seconds of every trial, on log scales, with a line for the median."""
    results = [result for r in state.rounds for result in r.results.values() if result.cost > 0 and result.seconds > 0]
    if not results:
        return None
    x = scale_over([r.cost for r in results], 58, width - 16, log=True)
    y = scale_over([r.seconds for r in results], 262, 18, log=True)
    times = [(v, format_duration(v)) for v in (1, 10, 60, 600, 3600, 36000, 360000, 0.1, 0.01) if y.low <= v <= y.high]
    times = times if len(times) > 1 else [(v, format_duration(v)) for v in y.ticks(4)]
    drawn = frame(x, y, xs=ticks_of(x, 6), ys=times)
    drawn.append(label("billed cost of a trial, in full runs", x.end, 298, cls="tick", text_anchor="end"))
    drawn.append(label("measured time", 4, 10, cls="tick"))
    paces = sorted(r.seconds / r.cost for r in results)
    pace = paces[len(paces) // 2]
    ends = [(c, c * pace) for c in (max(x.low, y.low / pace), min(x.high, y.high / pace))]
    drawn.append(
        path([(x(c), y(s)) for c, s in ends], "guide", data_tip=f"{format_duration(pace)} per full run, the median")
    )
    for r in results:
        cls = f"r{_tone(r.round - 1, state)}"
        drawn.append(dot(x(r.cost), y(r.seconds), 4, cls, data_tip=_tip(state, r, f"round {r.round}"), data_c=r.number))
    return drawing(drawn, width, 304, "Billed cost against measured seconds, one dot per trial")


def finalists(state: SearchState, width: int) -> str | None:
    """Draw the MRRs of the last round with scores, best first, with their 95 % intervals."""
    last = next((r for r in reversed(state.rounds) if ranked(r)), None)
    if last is None:
        return None
    shown = [last.results[n] for n in ranked(last)[:12]]
    ends = [v for r in shown for v in (r.interval or (r.mrr or 0.0,) * 2)]
    x = scale_over(ends, 44, width - 16)
    row, top = 26.0, 8.0
    y = Scale(0, 1, top + row * len(shown) + 4, top)
    drawn = frame(x, y, xs=ticks_of(x, 6), ys=[])
    drawn.append(label(f"MRR in round {last.plan.number}", x.end, y.start + 36, cls="tick", text_anchor="end"))
    if shown[0].interval is not None:
        low, high = shown[0].interval
        drawn.append(tag("rect", x=x(low), y=top, width=x(high) - x(low), height=y.start - top, cls="band"))
    for i, r in enumerate(shown):
        middle, role = top + row * (i + 0.5), "winner" if i == 0 else "other"
        drawn.append(label(f"#{r.number}", 0, middle + 4, cls="name strong" if i == 0 else "name", data_c=r.number))
        if r.interval is not None:
            drawn.append(
                line(x(r.interval[0]), middle, x(r.interval[1]), middle, cls=f"whisker {role}", data_c=r.number)
            )
        text = _tip(state, r, f"round {last.plan.number}")
        drawn.append(dot(x(r.mrr or 0.0), middle, 5, f"{role} solid", data_tip=text, data_c=r.number))
    return drawing(drawn, width, y.start + 42, "MRR with interval of the last round's trials")


def importance_bars(shares: dict[str, float], width: int) -> str | None:
    """Draw the importance of each parameter, largest first; very small ones are left out."""
    if not shares:
        return None
    shown = {name: s for i, (name, s) in enumerate(shares.items()) if i < 3 or (i < _MOST_BARS and s >= 0.005)}
    left = max(len(name) for name in shown) * CHARACTER + 12
    x = Scale(0.0, max(1e-9, *shown.values()), left, width - 56.0)
    drawn, row = [], 26.0
    for i, (name, share) in enumerate(shown.items()):
        y = row * i + 4
        drawn.append(label(name, left - 8, y + 14, cls="name", text_anchor="end"))
        drawn.append(bar(left, y, x(share) - left, 18, "plain", data_tip=f"{name}: {share:.3f}"))
        drawn.append(label(f"{share:.2f}", x(share) + 6, y + 14, cls="value"))
    return drawing(drawn, width, row * len(shown) + 8, "Importance of each parameter")


def slices(state: SearchState, parameters: list[SearchedParameter], width: int) -> str | None:
    """Draw one panel per parameter: values against the MRR of round 1, darker for configurations that came further."""
    scored = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.mrr is not None]
    used = [p for p in parameters if any(p.applies_to(state.configurations[r.number].values) for r in scored)]
    if not used:
        return None
    columns = 1 if width < _STACKED_BELOW else 3
    panel = width / columns
    last_round = {n: r.plan.number for r in state.rounds for n in r.results}
    scored.sort(key=lambda r: last_round[r.number])
    drawn = []
    for i, parameter in enumerate(used):
        x0, y0 = panel * (i % columns), _PANEL_HEIGHT * (i // columns)
        y = scale_over([r.mrr or 0.0 for r in scored], y0 + _PANEL_HEIGHT - 34, y0 + 28)
        drawn.append(label(parameter.label, x0 + 40, y0 + 16, cls="head"))
        axis = _ParameterAxis(parameter, x0 + 40, x0 + panel - 16)
        drawn += axis.frame(y)
        for r in scored:
            if parameter.applies_to(state.configurations[r.number].values):
                drawn.append(_slice_dot(state, r, axis, y, last_round[r.number]))
    height = _PANEL_HEIGHT * -(-len(used) // columns)
    return drawing(drawn, width, height, "Value of each parameter against the MRR of round 1")


def core_order_chart(dataset: Dataset, order: CoreOrder, fraction: float) -> str:
    """Draw what each fraction of the train triples keeps of triples, entities and relations, as a standalone SVG.

    Lines follow the core order, dots are whole k-cores, the vertical line marks `fraction`. Validation triples are
    counted without the guard.
    """
    import numpy as np

    from grash.reduction.subgraph import MAX_VALID, occurring_counts

    n, sizes = len(dataset.train), order.n_triples
    if not n:
        raise InputError(f"{dataset.name} has no train triples to draw.")
    shares = (sizes - np.minimum((2 * sizes + 5) // 10, MAX_VALID)) / n
    shares[sizes == n] = 1.0  # the whole graph has its own validation triples
    smallest = max(min(1 / 1024, fraction / 4), float(shares[np.searchsorted(shares, 0, side="right")]))
    prefixes = np.unique(np.searchsorted(shares, np.geomspace(smallest, 1.0, 400), side="right") - 1)
    entities, relations = (counts / counts[-1] for counts in occurring_counts(order, dataset))
    lines = {"train": ("train triples", shares), "entity": ("entities", entities), "relation": ("relations", relations)}
    x = Scale(smallest, 1.0, 56, 700, log=True)
    y = Scale(min(float(values[prefixes].min()) for _, values in lines.values()), 1.0, 430, 40, log=True)
    drawn = [tag("style", _CORE_ORDER_STYLE), *frame(x, y, xs=ticks_of(x), ys=ticks_of(y))]
    title = f"{dataset.name}: cores by {order.peeling.degree}, k up to {order.peeling.k_max}"
    drawn += [label(title, 56, 18), label("fraction of the train triples, as requested", 700, 466, text_anchor="end")]
    drawn.append(line(x(fraction), 430, x(fraction), 40, cls="guide"))
    drawn.append(label(f"{fraction:g}", x(fraction), 34, text_anchor="middle"))
    for cls, (_, values) in lines.items():
        drawn.append(path([(x(a), y(b)) for a, b in zip(shares[prefixes].tolist(), values[prefixes].tolist())], cls))
    cores = shares[len(order.peeling.order) - order.peeling.core_starts[:-1]].tolist()  # k = 0 … k_max, descending
    last = 0.0
    for k in reversed(range(len(cores))):
        if cores[k] >= smallest:
            drawn.append(dot(x(cores[k]), y(cores[k]), 2.5, "core"))
        if cores[k] > max(last * 1.25, smallest):
            drawn.append(label(k, x(cores[k]) + 5, y(cores[k]) + 12, cls="key core"))
            last = cores[k]
    keys = {**{cls: text for cls, (text, _) in lines.items()}, "core": "whole cores (numbers are k)"}
    drawn += [
        label(text, 690, 366 + 17 * i, cls=f"key {cls}", text_anchor="end")
        for i, (cls, text) in enumerate(keys.items())
    ]
    svg = drawing(drawn, 720, 476, "What each fraction of the train triples keeps of the graph")
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def _column(order: list[int], x: float, top: float, bottom: float) -> dict[int, tuple[float, float]]:
    step = (bottom - top) / max(1, len(order) - 1)
    return {n: (x, top + step * i) for i, n in enumerate(order)}


def _column_head(round_state: RoundState, x: float, first: bool, last: bool) -> str:
    anchor = "start" if first else "end" if last else "middle"
    shift = -6.0 if first else 6.0 if last else 0.0
    return label(f"round {round_state.plan.number}", x + shift, 16, cls="head", text_anchor=anchor) + label(
        f"{len(round_state.results)} trials", x + shift, 31, cls="tick", text_anchor=anchor
    )


def _curve(start: tuple[float, float], end: tuple[float, float], role: str, n: int) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    points = f"M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return tag("path", d=points, cls=f"mark curve {role}", data_c=n)


def _best_configuration(state: SearchState) -> int | None:
    incumbent = state.incumbent()
    return state.winner if state.winner is not None else None if incumbent is None else incumbent.number


def _role(number: int, best: int | None) -> str:
    return "winner" if number == best else "other"


def _tone(index: int, state: SearchState) -> int:
    """Return the color of a round: 1 for the first to 5 for the last."""
    most = max(1, len(state.sizes) - 1)
    return 1 + round(4 * index / most) if len(state.sizes) > 1 else 5


def _tip(state: SearchState, r: TrialResult, where: str) -> str:
    """Return the tooltip of a trial."""
    made = state.configurations[r.number]
    score = "no score" if r.mrr is None else f"MRR {r.mrr:.4f}"
    if r.interval is not None:
        score += f" [{r.interval[0]:.4f}, {r.interval[1]:.4f}]"
    text = f"configuration {r.number} · {made.values.get('model', '')} · {made.origin}\n{where}\n{score}"
    failed = "" if r.status == "ok" else f"\n{r.status}"
    return f"{text}{failed}\n{r.cost:.4g} full runs, {format_duration(r.seconds)}"


def _slice_dot(state: SearchState, r: TrialResult, axis: _ParameterAxis, y: Scale, last_round: int) -> str:
    value, best = state.configurations[r.number].values[axis.parameter.name], _best_configuration(state)
    where = f"{axis.parameter.label} = {_value_text(value)}\nround 1 (it reached round {last_round})"
    cls = f"r{_tone(last_round - 1, state)} {_role(r.number, best)}"
    size = 5.0 if r.number == best else 3.4
    x = axis(value, r.number)
    return dot(x, y(r.mrr or 0.0), size, cls, data_tip=_tip(state, r, where), data_c=r.number)


class _ParameterAxis:
    """The x axis of a parameter: a range, or choices side by side; values that are off are at the left."""

    def __init__(self, parameter: SearchedParameter, start: float, end: float) -> None:
        self.parameter, self.start = parameter, start
        if choices := parameter.choices:
            self.x = Scale(-0.5, len(choices) - 0.5, start, end)
            self.ticks = [(float(i), _shortened(c, (end - start) / len(choices))) for i, c in enumerate(choices)]
            return
        low, high = parameter.low, parameter.high
        low, high = (low, high) if high > low else (low * 0.9, high * 1.1 or 1.0)
        self.x = Scale(low, high, start + (_OFF_WIDTH if parameter.off else 6), end - 4, parameter.log)
        first = self.x.start + (12 if parameter.off else 0)  # px; leaves room for the label "off"
        self.ticks = [(value, text) for value, text in ticks_of(self.x, 4) if self.x(value) >= first]

    def __call__(self, value: Any, number: int) -> float:
        """Return the x of a value; equal choices are spread evenly by the configuration's number."""
        spread = (number * 0.6180339887) % 1.0 - 0.5  # multiples of the golden ratio
        if choices := self.parameter.choices:
            index = next((i for i, c in enumerate(choices) if repr(c) == repr(value)), 0)
            return self.x(index) + spread * min(0.6 * (self.x.end - self.x.start) / len(choices), 40)
        if self.parameter.is_off(value):
            return self.start + 10 + spread * 12
        return self.x(min(max(value, self.x.low), self.x.high))

    def frame(self, y: Scale) -> list[str]:
        grid = Scale(0.0, 1.0, self.start, self.x.end)
        drawn = frame(grid, y, xs=[], ys=ticks_of(y, 3)) + frame(self.x, y, xs=self.ticks, ys=[])
        if self.parameter.off:
            drawn.append(label("off", self.start + 10, y.start + 17, cls="tick", text_anchor="middle"))
        return drawn


def _shortened(value: Any, width: float) -> str:
    text, length = _value_text(value), max(3, int(width / CHARACTER))
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) else str(value)
