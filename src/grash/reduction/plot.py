"""How triples, entities and relations shrink along the chain, as a picture. Drawn for `grash reduce --plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grash.data.dataset import Dataset
from grash.errors import InputError
from grash.files import atomic_file
from grash.reduction.subgraph import MOST_VALID, Chain, occurring_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes


KINDS = (".png", ".svg", ".pdf")
_POINTS = 1500
_LEFT = 1 / 1024  # where x begins, unless a smaller fraction is marked
_FAR_APART = 1.25  # core numbers are written where the next one is at least so many times as large
_TRIPLES, _LADDER, _ENTITIES, _RELATIONS = "#4d4d4d", "#cc3311", "#0077bb", "#009988"


def draw_chain(dataset: Dataset, chain: Chain, path: Path, *, fraction: float | None = None) -> None:
    """Writes the picture; the ending of `path` says its kind. `fraction`: a size to mark.

    x is the fraction that is asked for, y what the subgraph then has of the full graph's triples, entities and
    relations; the ladder's steps stand beside the chain's line. Validation parts are counted without the guard.
    """
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise InputError(f"{path} has no ending that says what to draw: give one of {', '.join(KINDS)}.")
    if not len(dataset.train):
        raise InputError(f"{dataset.name} has no train triples, so that there is no chain to draw.")
    figure_class = _matplotlib()
    figure = figure_class(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    smallest = min(_LEFT, fraction / 4) if fraction is not None else _LEFT
    _draw_lines(axes, dataset, chain, smallest)
    if fraction is not None:
        axes.axvline(fraction, color="#999999", linewidth=1, zorder=1)
        axes.annotate(
            f"{fraction:g}", (fraction, 1.02), xycoords=("data", "axes fraction"), ha="center", color="#888888"
        )
    _dress(axes, dataset, chain)
    with atomic_file(path) as aside:
        figure.savefig(aside, format=path.suffix.lower()[1:], dpi=160)


def train_shares(n_triples: NDArray[np.int64], n_train: int) -> NDArray[np.float64]:
    """What subgraphs of so many triples have of the full train split once their validation part is taken out."""
    return (n_triples - np.minimum((2 * n_triples + 5) // 10, MOST_VALID)) / n_train


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "Drawing needs matplotlib, which is not installed: pip install 'grash[report]', or leave out --plot."
        ) from error
    return Figure


def _draw_lines(axes: Axes, dataset: Dataset, chain: Chain, smallest: float) -> None:
    n, sizes = len(dataset.train), chain.n_triples
    shares = train_shares(sizes, n)
    shares[sizes == n] = 1.0  # the whole graph has a valid of its own
    smallest = max(smallest, shares[np.searchsorted(shares, 0, side="right")])
    wanted = np.geomspace(smallest, 1.0, _POINTS)
    places = np.unique(np.searchsorted(shares, wanted, side="right") - 1)
    occurring = occurring_in(chain, dataset)
    for label, color, counts in (
        ("triples, chain", _TRIPLES, shares),
        ("entities", _ENTITIES, occurring.n_entities / occurring.n_entities[-1]),
        ("relations", _RELATIONS, occurring.n_relations / occurring.n_relations[-1]),
    ):
        axes.plot(shares[places], counts[places], color=color, linewidth=1.8, label=label)
    _draw_ladder(axes, chain, shares, smallest)


def _draw_ladder(axes: Axes, chain: Chain, shares: NDArray[np.float64], smallest: float) -> None:
    cores = shares[len(chain.peeling.order) - chain.peeling.core_starts[:-1]]  # of k = 0 … k_max, descending
    ks = np.flatnonzero(cores >= smallest)[::-1]
    style: dict[str, Any] = {"color": _LADDER, "linewidth": 1, "marker": "o", "markersize": 3}
    axes.step(cores[ks], cores[ks], where="post", label="triples, ladder (numbers are k)", **style)
    last = 0.0
    for k in ks.tolist():
        if cores[k] > last * _FAR_APART:
            axes.annotate(str(k), (cores[k], cores[k]), (4, -9), textcoords="offset points", fontsize=8, color=_LADDER)
            last = cores[k]


def _dress(axes: Axes, dataset: Dataset, chain: Chain) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("fraction of the train triples that is asked for")
    axes.set_ylabel("share of the full graph")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(
        f"{dataset.name}: cores by {chain.peeling.degree}, k up to {chain.peeling.k_max}", loc="left", pad=16
    )
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", facecolor="white", edgecolor="none", framealpha=1)
