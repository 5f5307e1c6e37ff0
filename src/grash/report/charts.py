"""The charts of the report. Each function returns one SVG of the given width, or None if there is nothing to draw.

Charts of rounds and parameters come first, then SVG elements and scales. A configuration is labeled with its number,
e.g. "#12". Colors are CSS classes, so the page's light and dark styles apply. `data-tip` of a mark is its tooltip;
pointing at one mark highlights all marks with the same `data-c`, its configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from grash.errors import InputError
from grash.formatting import format_bytes, format_duration, format_number
from grash.models import model_class
from grash.report.importance import SearchedParameter, round_correlations, value_text
from grash.report.summary import TrialSpan, mrr_text, n_entrants, ranked
from grash.search.ledger import SearchState
from grash.search.trial import TrialResult

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.evaluation.calibration import Reliability
    from grash.reduction.subgraph import CoreOrder

CHARACTER = 6.6  # px; an upper estimate of the width of one character at 12 px
_HEAD_CHARACTER = 8.0  # px; the same for a heading
_STACKED_BELOW = 480  # px; in a narrower chart, panels are stacked
_MOST_BARS = 14
_DIFFERENT_SIZES = 1.5  # times as large: models whose sizes are worth a chart
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
    """Draw the ranks of the trials in each round, best at the top; lines follow configurations that advanced.

    None before the second round has results.
    """
    rounds = [(r, ranked(r)) for r in state.rounds if r.results]
    if len(rounds) < 2 or not rounds[0][1]:
        return None
    left, right, top, bottom = 44.0, width - 52.0, 46.0, 372.0
    columns = [left + (right - left) * i / (len(rounds) - 1) for i in range(len(rounds))]
    points = []  # of each round: {configuration: (x, y)}
    for (_, order), x in zip(rounds, columns):
        step = (bottom - top) / max(1, len(order) - 1)
        points.append({n: (x, top + step * i) for i, n in enumerate(order)})
    drawn = [label("best", 0, top + 4, cls="tick"), label("worst", 0, bottom + 4, cls="tick")]
    best = _best_configuration(state)
    for i, (r, order) in enumerate(rounds):
        first, last = i == 0, i == len(rounds) - 1
        anchor, x = ("start", -6.0) if first else ("end", 6.0) if last else ("middle", 0.0)
        drawn.append(label(f"round {r.plan.number}", columns[i] + x, 16, cls="head", text_anchor=anchor))
        drawn.append(label(f"{len(r.results)} trials", columns[i] + x, 31, cls="tick", text_anchor=anchor))
        for n in reversed(order):
            if not last and n in points[i + 1]:
                (x1, y1), (x2, y2) = points[i][n], points[i + 1][n]
                middle = (x1 + x2) / 2
                curve = f"M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
                drawn.append(tag("path", d=curve, cls=f"mark curve {_role(n, best)}", data_c=n))
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
    times = [(v, _tick_text(v)) for v in (1, 10, 60, 600, 3600, 36000, 360000, 0.1, 0.01) if y.low <= v <= y.high]
    times = times if len(times) > 1 else [(v, _tick_text(v)) for v in y.ticks(4)]
    drawn = frame(x, y, xs=ticks_of(x, 6), ys=times)
    drawn.append(label("billed cost of a trial, in full runs", x.end, 298, cls="tick", text_anchor="end"))
    drawn.append(label("measured time", 4, 10, cls="tick"))
    paces = sorted(r.seconds / r.cost for r in results)
    pace = paces[len(paces) // 2]
    ends = [(c, c * pace) for c in (max(x.low, y.low / pace), min(x.high, y.high / pace))]
    median = f"{format_duration(pace)} per full run, the median"
    drawn.append(path([(x(c), y(s)) for c, s in ends], "guide", data_tip=median))
    for r in results:
        cls = f"r{_tone(r.round - 1, state)}"
        drawn.append(dot(x(r.cost), y(r.seconds), 4, cls, data_tip=_tip(state, r, f"round {r.round}"), data_c=r.number))
    return drawing(drawn, width, 304, "Billed cost against measured seconds, one dot per trial")


def size_against_score(state: SearchState, width: int) -> str | None:
    """Draw the model size of every configuration against its score in round 1, with the Pareto front.

    None if sizes hardly differ, as by reciprocal relations only.
    """
    results = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.value is not None]
    sizes = {r.number: _model_bytes(state, r.number) for r in results}
    if not sizes or max(sizes.values()) < _DIFFERENT_SIZES * min(sizes.values()):
        return None
    x = scale_over([float(size) for size in sizes.values()], 58, width - 16, log=True)
    y = scale_over([r.value or 0.0 for r in results], 262, 18)
    drawn = frame(x, y, xs=[(v, format_bytes(v)) for v in x.ticks(4)], ys=ticks_of(y))
    drawn.append(label("size of the model's tables", x.end, 298, cls="tick", text_anchor="end"))
    metric = state.settings.get("metric", "mrr")
    drawn.append(label("MRR in round 1" if metric == "mrr" else f"{metric} in round 1", 4, 10, cls="tick"))
    points = pareto_front([(sizes[r.number], r.value or 0.0) for r in results])
    drawn.append(path([(x(size), y(value)) for size, value in points], "guide", data_tip="the Pareto front"))
    best = _best_configuration(state)
    for r in sorted(results, key=lambda r: r.number == best):
        tip = f"{_tip(state, r, 'round 1')}\n{format_bytes(sizes[r.number])}{_question_text(state, r.number)}"
        place = x(sizes[r.number]), y(r.value or 0.0)
        drawn.append(dot(*place, 4, f"{_role(r.number, best)} solid", data_tip=tip, data_c=r.number))
    return drawing(drawn, width, 304, "Model size against score, one dot per configuration")


def pareto_front(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the (size, score) points that no other beats: none is as small with a higher score. Sorted by size."""
    front: list[tuple[int, float]] = []
    for size, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or value > front[-1][1]:
            front.append((size, value))
    return front


def _question_text(state: SearchState, number: int) -> str:
    """Return the time of a question to a configuration, if `max_prediction_ms` has measured its dimension."""
    values = state.configurations[number].values
    measured = state.settings.get("prediction_ms", {}).get(values.get("model"), {}).get(str(values.get("dim")))
    return "" if measured is None else f"\n{measured:.2g} ms for a question"


def _model_bytes(state: SearchState, number: int) -> int:
    """Return the bytes of a configuration's tables on the full graph."""
    values, dataset = state.configurations[number].values, state.dataset
    dim, relations = values.get("dim", 0), dataset.get("n_relations", 0) * (2 if values.get("reciprocal") else 1)
    itemsize = 2 if values.get("storage") == "bf16" else 4
    width = model_class(values.get("model", "complex")).relation_width(dim)
    return int(itemsize * dataset.get("n_entities", 0) * dim + 4 * relations * width)


def finalists(state: SearchState, width: int) -> str | None:
    """Draw the MRRs of the last round with scores, best first, with their 95 % intervals."""
    last = state.last_scored()
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
            low, high = x(r.interval[0]), x(r.interval[1])
            drawn.append(line(low, middle, high, middle, cls=f"whisker {role}", data_c=r.number))
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


def reliability(found: Reliability | None, width: int) -> str | None:
    """Draw the share of right first answers against their probability, in ten bins; dots grow with their number."""
    if found is None or not found.n:
        return None
    x, y = Scale(0.0, 1.0, 44, width - 16), Scale(0.0, 1.0, 292, 14)
    percents = [(i / 5, f"{20 * i} %") for i in range(6)]
    drawn = frame(x, y, xs=percents, ys=percents)
    drawn.append(path([(x(0), y(0)), (x(1), y(1))], "guide"))
    drawn.append(label("probability of the first answer", x.end, 328, cls="tick", text_anchor="end"))
    drawn.append(label("right", x.start + 6, 30, cls="tick"))
    filled = [(n, mean, right) for n, mean, right in zip(found.counts, found.means, found.right) if n]
    drawn.append(path([(x(mean), y(right)) for _, mean, right in filled], "curve winner"))
    for n, mean, right in filled:
        tip = f"{n:,} questions\nprobability {100 * mean:.0f} % on average\n{100 * right:.0f} % were right"
        drawn.append(dot(x(mean), y(right), 3 + 7 * math.sqrt(n / max(found.counts)), "winner solid", data_tip=tip))
    return drawing(drawn, width, 334, "Share of right first answers against their probability")


def slices(state: SearchState, parameters: list[SearchedParameter], width: int) -> str | None:
    """Draw one panel per parameter: values against the MRR of round 1, stronger the more rounds they survived."""
    scored = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.mrr is not None]
    used = [p for p in parameters if any(p.applies_to(state.configurations[r.number].values) for r in scored)]
    if not used:
        return None
    columns = 1 if width < _STACKED_BELOW else 3
    panel = width / columns
    last_round = {n: r.plan.number for r in state.rounds for n in r.results}
    scored.sort(key=lambda r: last_round[r.number])
    best = _best_configuration(state)
    drawn = []
    for i, parameter in enumerate(used):
        x0, y0 = panel * (i % columns), _PANEL_HEIGHT * (i // columns)
        y = scale_over([r.mrr or 0.0 for r in scored], y0 + _PANEL_HEIGHT - 34, y0 + 28)
        drawn.append(label(parameter.label, x0 + 40, y0 + 16, cls="head"))
        axis = _ParameterAxis(parameter, x0 + 40, x0 + panel - 16)
        drawn += axis.frame(y)
        for r in scored:
            if parameter.applies_to(state.configurations[r.number].values):
                value, reached = state.configurations[r.number].values[parameter.name], last_round[r.number]
                text = f"{parameter.label} = {value_text(value)}\nround 1 (it reached round {reached})"
                cls, size = f"r{_tone(reached - 1, state)} {_role(r.number, best)}", 5.0 if r.number == best else 3.4
                place = axis(value, r.number), y(r.mrr or 0.0)
                drawn.append(dot(*place, size, cls, data_tip=_tip(state, r, text), data_c=r.number))
    height = _PANEL_HEIGHT * -(-len(used) // columns)
    return drawing(drawn, width, height, "Value of each parameter against the MRR of round 1")


def best_so_far(state: SearchState, width: int) -> str | None:
    """Draw the best MRR so far of each round against the cost billed so far; rounds have different graphs."""
    spent, lines = 0.0, []  # of each round: [(cost so far, best MRR so far, the trial that improved it)]
    for r in state.rounds:
        points: list[tuple[float, float, TrialResult]] = []
        for result in r.results.values():
            spent += result.cost
            best = max((result.mrr or 0.0), points[-1][1] if points else 0.0)
            points.append((spent, best, result))
        lines += [(r.plan.number, points)] if any(p[1] for p in points) else []
    if not lines:
        return None
    x = Scale(0.0, max(spent, 1e-9) * 1.02, 44, width - 60)
    y = scale_over([best for _, points in lines for _, best, _ in points if best], 230, 18)
    drawn = frame(x, y, xs=ticks_of(x, 5), ys=ticks_of(y, 4))
    drawn.append(label("billed cost so far, in full runs", x.end, 268, cls="tick", text_anchor="end"))
    for number, points in lines:
        shown = [point for point in points if point[1]]
        steps = [(x(shown[0][0]), y(shown[0][1]))]
        for cost, best, _ in shown[1:]:
            steps += [(x(cost), steps[-1][1]), (x(cost), y(best))]
        tone = f"r{_tone(number - 1, state)}"
        drawn.append(path(steps, f"step {tone}", data_tip=f"round {number}: highest MRR so far"))
        for i, (cost, best, result) in enumerate(shown):
            if i == 0 or best > shown[i - 1][1]:
                text = _tip(state, result, f"best of round {number} so far")
                drawn.append(dot(x(cost), y(best), 3.4, tone, data_tip=text, data_c=result.number))
        drawn.append(label(f"round {number}", steps[-1][0] + 6, steps[-1][1] + 4, cls="name halo"))
    return drawing(drawn, width, 274, "The highest MRR of each round so far, against the cost so far")


def timeline(state: SearchState, spans: list[TrialSpan], width: int) -> str | None:
    """Draw when each trial ran, on which device; trials that ran at the same time are in different lanes."""
    if not spans:
        return None
    lanes: dict[str, list[float]] = {}  # by device: the end of the last trial of each lane
    placed = []
    for span in sorted(spans, key=lambda s: (s.start, s.number)):
        ends = lanes.setdefault(span.device, [])
        lane = next((i for i, end in enumerate(ends) if end <= span.start + 1e-6), len(ends))
        ends[lane:] = [span.end, *ends[lane + 1 :]]
        placed.append((span, lane))
    height = min(18.0, max(3.0, 320 / sum(map(len, lanes.values()))))
    tops, top = {}, 8.0
    for device in sorted(lanes):
        tops[device], top = top, top + height * len(lanes[device]) + 10
    left = max(map(len, lanes)) * CHARACTER + 10
    x = Scale(0.0, max(span.end for span in spans) or 1.0, left, width - 16)
    y = Scale(0, 1, top, 8)
    drawn = frame(x, y, xs=_duration_ticks(x.high, 4 if width < _STACKED_BELOW else 8), ys=[])
    best = _best_configuration(state)
    drawn += [label(device, 0, tops[device] + min(height, 18) - 4, cls="name") for device in sorted(lanes)]
    for span, lane in placed:
        where = f"round {span.round}" if span.round else "final training"
        role = "winner" if not span.round or span.number == best else f"r{_tone(span.round - 1, state)}"
        tip = f"configuration {span.number}, {where}\n{span.status}, {format_duration(span.end - span.start)}"
        place = (x(span.start), tops[span.device] + height * lane, x(span.end) - x(span.start) - 0.6, height - 1)
        drawn.append(bar(*place, f"lane {role}", data_tip=tip, data_c=span.number))
    return drawing(drawn, width, top + 26, "When each trial ran, on which device")


def parallel_coordinates(state: SearchState, parameters: list[SearchedParameter], width: int) -> str | None:
    """Draw a line per configuration through its values of the first parameters, and its MRR of round 1."""
    scored = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.mrr is not None]
    values = {r.number: state.configurations[r.number].values for r in scored}
    used = [p for p in parameters if any(p.applies_to(v) for v in values.values())]
    used = used[: 3 if width < _STACKED_BELOW else 7]
    if not used or len(scored) < 2:
        return None
    top, bottom, unused = 46.0, 250.0, 272.0
    columns = [24 + (width - 72) * i / len(used) for i in range(len(used) + 1)]
    axes = [_VerticalAxis(parameter, bottom, top, unused) for parameter in used]
    y = scale_over([r.mrr or 0.0 for r in scored], bottom, top)
    drawn = []
    best, last_round = _best_configuration(state), {n: r.plan.number for r in state.rounds for n in r.results}
    for r in sorted(scored, key=lambda r: (r.number == best, last_round[r.number])):
        heights = [axis(values[r.number], r.number) for axis in axes]
        points = [*zip(columns, heights), (columns[-1], y(r.mrr or 0.0))]
        cls = f"curve tone r{_tone(last_round[r.number] - 1, state)} {_role(r.number, best)}"
        text = _tip(state, r, f"round 1 (it reached round {last_round[r.number]})")
        drawn.append(path(points, cls, data_tip=text, data_c=r.number))
    drawn += [label("off or not used", 24, unused + 18, cls="tick")]
    for i, (axis, x) in enumerate(zip(axes, columns)):
        drawn += axis.frame(x, _heading_height(i), room=2 * (columns[1] - columns[0]))
    drawn += [
        line(columns[-1], top, columns[-1], bottom, cls="axis"),
        label("MRR", columns[-1], _heading_height(len(axes)), cls="head", text_anchor="middle"),
    ]
    drawn += [label(text, columns[-1] + 6, y(value) + 4, cls="tick") for value, text in ticks_of(y, 4)]
    return drawing(drawn, width, unused + 28, "Values of the parameters of each configuration, and its MRR in round 1")


def _heading_height(column: int) -> float:
    """Return where the heading of a column is: neighbors are not on the same line."""
    return 14.0 if column % 2 else 29.0


def relation_bars(rows: list[tuple[str, int, float, float, float | None]], width: int) -> str | None:
    """Draw the test MRR of each relation as a bar, and the baseline's as a vertical mark."""
    shown = rows[:_MOST_BARS]
    if not shown:
        return None
    most = 18 if width < _STACKED_BELOW else 40
    names = [name if len(name) <= most else f"…{name[1 - most :]}" for name, *_ in shown]
    left = max(map(len, names)) * CHARACTER + 12
    x, row, drawn = Scale(0.0, 1.0, left, width - 56.0), 26.0, []
    for i, (name, (full, n, mrr, hits, base)) in enumerate(zip(names, shown)):
        y = row * i + 4
        against = "" if base is None else f"\nbaseline MRR {base:.4f}"
        drawn.append(label(name, left - 8, y + 14, cls="name", text_anchor="end"))
        tip = f"{full}\nMRR {mrr:.4f}, Hits@10 {hits:.3f}, {n:,} questions{against}"
        drawn.append(bar(left, y, x(mrr) - left, 18, "r4", data_tip=tip))
        drawn.append(label(f"{mrr:.2f}", max(x(mrr), x(base or 0.0)) + 6, y + 14, cls="value"))
        drawn += [line(x(base), y - 1, x(base), y + 19, cls="baseline")] if base is not None else []
    return drawing(drawn, width, row * len(shown) + 8, "Test MRR of each relation, with the baseline")


def run_intervals(entries: list[tuple[str, float, tuple[float, float]]], width: int) -> str | None:
    """Draw the test MRRs of several runs with their 95 % intervals."""
    if not entries:
        return None
    most = int(width / 2 / CHARACTER) - 2
    names = [name if len(name) <= most else f"…{name[1 - most :]}" for name, *_ in entries]
    left = max(map(len, names)) * CHARACTER + 14
    x = scale_over([end for _, _, interval in entries for end in interval], left, width - 16)
    row, top = 28.0, 8.0
    y = Scale(0, 1, top + row * len(entries) + 4, top)
    drawn = frame(x, y, xs=ticks_of(x, 5), ys=[])
    drawn.append(label("test MRR", x.end, y.start + 36, cls="tick", text_anchor="end"))
    best = max(mrr for _, mrr, _ in entries)
    for i, (shown, (name, mrr, (low, high))) in enumerate(zip(names, entries)):
        middle, role = top + row * (i + 0.5), "winner" if mrr == best else "other"
        drawn.append(label(shown, 0, middle + 4, cls="name strong" if mrr == best else "name"))
        drawn.append(line(x(low), middle, x(high), middle, cls=f"whisker {role}"))
        drawn.append(dot(x(mrr), middle, 5, f"{role} solid", data_tip=f"{name}\n{mrr_text(mrr, (low, high))}"))
    return drawing(drawn, width, y.start + 42, "Test MRR of each run with its 95 % interval")


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
    for i, (cls, text) in enumerate(keys.items()):
        drawn.append(label(text, 690, 366 + 17 * i, cls=f"key {cls}", text_anchor="end"))
    svg = drawing(drawn, 720, 476, "What each fraction of the train triples keeps of the graph")
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


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
    lines = [f"configuration {r.number} · {made.values.get('model', '')} · {made.origin}", where]
    lines += [mrr_text(r.mrr, r.interval), *([] if r.status == "ok" else [r.status])]
    return "\n".join([*lines, f"{r.cost:.4g} full runs, {format_duration(r.seconds)}"])


class _ParameterAxis:
    """The x axis of a parameter: a range, or choices side by side; values that are off are at the left."""

    def __init__(self, parameter: SearchedParameter, start: float, end: float) -> None:
        self.parameter, self.start = parameter, start
        if choices := parameter.choices:
            self.x = Scale(-0.5, len(choices) - 0.5, start, end)
            most = max(3, int((end - start) / len(choices) / CHARACTER))
            texts = [value_text(choice) for choice in choices]
            shown = [text if len(text) <= most else f"{text[: most - 1]}…" for text in texts]
            self.ticks = [(float(i), text) for i, text in enumerate(shown)]
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


class _VerticalAxis:
    """A vertical axis of `parallel_coordinates`; values that are off or not used are below it."""

    def __init__(self, parameter: SearchedParameter, bottom: float, top: float, unused: float) -> None:
        self.parameter, self.unused = parameter, unused
        if choices := parameter.choices:
            self.y = Scale(-0.5, len(choices) - 0.5, bottom, top)
            self.ticks = [(float(i), value_text(choice)) for i, choice in enumerate(choices)]
            return
        low, high = parameter.low, parameter.high
        self.y = Scale(low, high if high > low else low * 1.1 or 1.0, bottom, top, parameter.log)
        self.ticks = ticks_of(self.y, 3)

    def __call__(self, values: dict[str, Any], number: int) -> float:
        parameter = self.parameter
        if not parameter.applies_to(values) or parameter.is_off(values[parameter.name]):
            return self.unused
        value = values[parameter.name]
        if parameter.choices:
            index = next((i for i, c in enumerate(parameter.choices) if repr(c) == repr(value)), 0)
            spread = ((number * 0.6180339887) % 1.0 - 0.5) * 0.5  # so that equal choices do not hide each other
            return self.y(index + spread)
        return self.y(min(max(value, self.y.low), self.y.high))

    def frame(self, x: float, heading: float, room: float) -> list[str]:
        name, most = self.parameter.label, int(room / _HEAD_CHARACTER)
        drawn = [
            label(
                name if len(name) <= most else f"{name[: most - 1]}…",
                x,
                heading,
                cls="head",
                text_anchor="middle" if x > 30 else "start",
            )
        ]
        drawn.append(line(x, self.y.end, x, self.y.start, cls="axis"))
        drawn += [label(text, x + 5, self.y(value) + 4, cls="tick halo") for value, text in self.ticks]
        return [*drawn, dot(x, self.unused, 2, "axis-end")]


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """Return one element. `content` is markup; attribute values are escaped. `cls` is `class`, and `_` becomes `-`."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        key = "class" if key == "cls" else key.replace("_", "-")
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        parts.append(f'{key}="{escape(text, quote=True)}"')
    opening = " ".join(parts)
    return f"<{opening}>{content}</{name}>" if content else f"<{opening}/>"


def label(text: object, x: float, y: float, **attributes: Any) -> str:
    """Return a text element; the text is escaped."""
    return tag("text", escape(str(text)), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Any) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def dot(x: float, y: float, r: float, cls: str, **attributes: Any) -> str:
    return tag("circle", cx=x, cy=y, r=r, cls=f"mark {cls}", **attributes)


def bar(x: float, y: float, width: float, height: float, cls: str, **attributes: Any) -> str:
    return tag("rect", x=x, y=y, width=max(width, 1.0), height=height, rx=2, cls=f"mark {cls}", **attributes)


def path(points: list[tuple[float, float]], cls: str, **attributes: Any) -> str:
    """Return a line through the points."""
    coordinates = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{coordinates}", cls=f"mark {cls}", **attributes)


def drawing(content: list[str], width: float, height: float, description: str) -> str:
    """Return the svg element; screen readers read the description."""
    return tag(
        "svg", "".join(content), viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img",
        aria_label=description,
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels: low to start, high to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return about that many round values within the scale."""
        return _log_ticks(self.low, self.high, about) if self.log else _even_ticks(self.low, self.high, about)


def scale_over(values: list[float], start: float, end: float, *, log: bool = False) -> Scale:
    """Return a scale over the values, with a margin at both ends."""
    low, high = (min(values), max(values)) if values else ((0.1, 1.0) if log else (0.0, 1.0))
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return Scale(low - room, high + room, start, end)


def frame(x: Scale, y: Scale, *, xs: list[tuple[float, str]], ys: list[tuple[float, str]]) -> list[str]:
    """Return axes and grid lines with labels; a tick is (value, text)."""
    drawn = []
    for value, text in ys:
        drawn.append(line(x.start, y(value), x.end, y(value), cls="grid"))
        drawn.append(label(text, x.start - 6, y(value) + 4, cls="tick", text_anchor="end"))
    for value, text in xs:
        drawn.append(line(x(value), y.start, x(value), y.start + 4, cls="axis"))
        drawn.append(label(text, x(value), y.start + 17, cls="tick", text_anchor="middle"))
    return [*drawn, line(x.start, y.start, x.end, y.start, cls="axis")]


def ticks_of(scale: Scale, about: int = 5) -> list[tuple[float, str]]:
    """Return the ticks of a scale with their texts."""
    return [(value, format_number(value)) for value in scale.ticks(about)]


def _duration_ticks(seconds: float, about: int) -> list[tuple[float, str]]:
    """Return about that many ticks from 0, at round seconds, minutes or hours."""
    steps = [m * unit for unit in (0.01, 0.1, 1, 60, 3600, 36_000, 360_000) for m in (1, 2, 5, 10, 15, 20, 30)]
    step = next((s for s in sorted(steps) if s * about >= seconds), seconds / about)
    return [(i * step, _tick_text(i * step) if i else "0") for i in range(int(seconds / step + 1e-9) + 1)]


def _tick_text(seconds: float) -> str:
    """Return a duration; below a second with as many digits as neighboring ticks need."""
    return format_duration(seconds) if seconds >= 1 else f"{format_number(seconds)} s"


def _even_ticks(low: float, high: float, about: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    """Return powers of ten; where fewer than three are in range, also 2 and 5 times them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**e for e in range(first, last + 1) if low <= 10.0**e <= high]
    if len(powers) < 3:
        finer = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        return finer[:: max(1, -(-len(finer) // (about + 1)))] or [low]
    return powers[:: max(1, -(-len(powers) // about))]
