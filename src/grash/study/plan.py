"""What a study still has to train, and about how long that takes: lines for a person, and the pace behind them.

Comes from the cells of a study and its store; goes to the command, which hands the pace on to run.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grash.engines.device import choose_device
from grash.errors import InputError
from grash.reduction.subgraph import Subgraph
from grash.study.cells import Cell
from grash.study.estimate import Pace
from grash.study.graphs import StudyGraphs
from grash.study.run import Group, missing
from grash.study.store import Store
from grash.study.train import device_words


@dataclass(frozen=True)
class Plan:
    """lines: what is missing, by graph; pace: of the trainings that are known or were probed."""

    lines: tuple[str, ...]
    pace: Pace


def plan_cells(graphs: StudyGraphs, cells: Iterable[Cell], store: Store, *, device: str = "auto") -> Plan:
    """Writes nothing; where nothing is known of this device, it is tried out for some steps."""
    asked = list(cells)
    where, groups = choose_device(device), missing(asked, store)
    lines = [f"{graphs.pool.name}: {sum(store.find(c) is not None for c in asked)} of {len(asked)} cells are there"]
    there: dict[Group, Subgraph] = {}
    for group in groups:
        try:
            there[group] = graphs.graph(group[0], group[1])
        except InputError as error:
            lines.append(f"  {group[0]} {group[1]:.4g}: {error}")
    probed = [(g, groups[k], k[2][-1]) for k, g in there.items() if len(g.dataset.valid)]
    pace = Pace.of(store, where).probed(graphs.pool, probed, where)
    total = 0.0
    for (technique, fraction, marks), graph in there.items():
        numbers, epochs = groups[technique, fraction, marks], marks[-1] * graphs.pool.settings.max_epochs
        seconds = pace.seconds(graphs.pool, graph, numbers, marks[-1]) or 0.0
        total += seconds
        lines.append(
            f"  {technique:8} {fraction:.4f}  {len(numbers):4} trainings of {epochs:.4g} epochs on "
            f"{graph.dataset.n_entities:,} entities, {len(graph.dataset.train):,} triples: about {seconds:,.1f} s"
        )
    return Plan((*lines, f"about {total:,.0f} s of {device_words(where)} in all"), pace)
