"""report.html: one file that shows a search, without a request to anywhere. Rewritten from the ledger at any time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grash.errors import InputError
from grash.files import whole_file
from grash.report import contents
from grash.report.charts import cost_against_time, finalists, funnel, learning_curves, rank_flow
from grash.report.importances import ENOUGH, Importances, importances
from grash.report.parameters import Axis, searched
from grash.report.slices import importance_bars, slices
from grash.report.summary import abandoned, state_of, summarise
from grash.search.ledger import LEDGER_FILE, read_ledger
from grash.search.state import SearchState
from grash.version import __version__

REPORT_FILE = "report.html"
_TEMPLATE = Path(__file__).parent / "template"
_WIDE, _HALF, _NARROW = 950, 462, 346  # px: the page, half of it, a telephone


def write_report(run_folder: Path) -> Path:
    """Writes report.html into the run folder, whether the search runs, has failed or is finished."""
    folder = Path(run_folder)
    state = state_of(folder)
    summary = summarise(state, datetime.now(timezone.utc), alive=not abandoned(folder))
    page = render(state, summary, folder=str(run_folder), versions=_versions(folder))
    with whole_file(folder / REPORT_FILE) as aside:
        aside.write_text(page, encoding="utf-8")
    return folder / REPORT_FILE


def render(state: SearchState, summary: dict[str, Any], *, folder: str, versions: dict[str, Any]) -> str:
    """The page as text; every name in it is escaped."""
    template, axes = _template(), searched(state)
    found = importances(state, axes)
    name, models = str(state.dataset.get("name", "a graph")), ", ".join(state.settings.get("models", []))
    return str(
        template.render(
            title=f"{name}: {models}",
            heading=f"{models} on {name}",
            version=__version__,
            written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            banner=contents.banner(summary, state),
            tiles=contents.tiles(summary, state),
            best=contents.best(state, axes),
            commands=contents.commands(state, folder),
            charts=_charts(state, axes, found),
            importance_note=_importance_note(state, found),
            notes=[f"Round {p.plan.number}: {note}" for p in state.rounds for note in p.plan.notes],
            flow_sentence=contents.flow_sentence(state),
            costs=contents.costs(state),
            failures=contents.failure_rows(summary),
            trials=contents.trials(state, axes),
            settings=contents.settings_facts(state),
            about=contents.about_facts(state, versions),
            style=_part("style.css"),
            script=_part("page.js"),
        )
    )


def _charts(state: SearchState, axes: list[Axis], found: Importances | None) -> dict[str, Any]:
    drawn: dict[str, tuple[Callable[[int], str | None], int]] = {
        "finalists": (lambda width: finalists(state, width), _HALF),
        "funnel": (lambda width: funnel(state, width), _WIDE),
        "ranks": (lambda width: rank_flow(state, width), _WIDE),
        "importances": (lambda width: None if found is None else importance_bars(found, width), _HALF),
        "cost": (lambda width: cost_against_time(state, width), _HALF),
        "slices": (lambda width: slices(state, _by_importance(axes, found), width), _WIDE),
        "curves": (lambda width: learning_curves(state, width), _WIDE),
    }
    return {name: _chart(name, draw, width) for name, (draw, width) in drawn.items()}


def _by_importance(axes: list[Axis], found: Importances | None) -> list[Axis]:
    order = {} if found is None else found.shares
    return sorted(axes, key=lambda axis: -order.get(axis.label, 0.0))


def _chart(name: str, draw: Callable[[int], str | None], width: int) -> dict[str, Any] | None:
    """Both forms of a chart: a drawing that is scaled down to a telephone has letters too small to read."""
    from markupsafe import Markup

    wide, narrow = draw(width), draw(_NARROW)
    if wide is None or narrow is None:
        return None
    return {"name": name, "wide": Markup(wide), "narrow": Markup(narrow)}  # made by svg.py, which escapes


def _importance_note(state: SearchState, found: Importances | None) -> str:
    if found is None:
        return ""
    scored = sum(r.mrr is not None for r in state.rounds[0].results.values())
    hint = "" if scored >= ENOUGH else " With so few it is a hint at best."
    return f"{found.method}; {scored} configurations have a score.{hint} Parameters below 0.005 are left out."


def _versions(folder: Path) -> dict[str, Any]:
    first = read_ledger(folder / LEDGER_FILE)[0]
    return dict(first.get("versions", {}))


def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise InputError("The report needs jinja2: pip install 'grash[report]'.") from error
    loader = FileSystemLoader(_TEMPLATE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html")


def _part(name: str) -> Any:
    """A file of ours that goes into the page as it is."""
    from markupsafe import Markup

    return Markup((_TEMPLATE / name).read_text(encoding="utf-8"))
