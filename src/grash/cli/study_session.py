"""What the verbs of `grash study` share: options, a pool with its graphs and store, the time that is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from grash.cli.options import option_of
from grash.cli.show import command, listen, say
from grash.cli.train import assignment
from grash.errors import ConfigError, InputError

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.study.cells import Cell
    from grash.study.graphs import StudyGraphs
    from grash.study.pages import Page
    from grash.study.pool import Pool
    from grash.study.searches import Asked
    from grash.study.store import Store


UNFINISHED = 7  # exit code of a study that --max-seconds ended; the same command goes on


def _option(kind: Any, default: Any, *names: str, help: str) -> tuple[Any, Any, Any]:
    return kind, default, typer.Option(*names, help=help)


POOL: dict[str, tuple[Any, Any, Any]] = {
    "model": _option(str, "complex", "--model", "-m", help="Model of the configurations."),
    "dim": _option(int, 128, "--dim", "-d", help="Floats per entity."),
    "epochs": _option(float, 100.0, "--epochs", "-e", help="E: epochs of a full training run."),
    "space": _option(str, "paper", "--space", help="default, paper, wide, or a YAML file."),
    "seed": _option(int, 0, "--seed", help="Every random choice follows from it."),
    "fixed": _option(
        list[str] | None, None, "--set", help="A setting of the training that is not searched, name=value. Repeatable."
    ),
}
RUNNING: dict[str, tuple[Any, Any, Any]] = {
    "store": _option(Path, Path("studies"), "--store", help="Folder of results; a run goes on with what it has."),
    "out": _option(Path, Path("docs/results"), "-o", "--out", help="Folder of pages and plots."),
    "device": _option(str, "auto", "--device", help="auto, cpu, cuda or cuda:i."),
    "max_seconds": _option(
        float | None, None, "--max-seconds", help="Begin nothing that would end later; 0 only writes the page."
    ),
    "batch": _option(int, 64, "--batch", help="Configurations trained together, and written at once."),
    "plan": _option(bool, False, "--plan", help="Only say what is missing and about how long it takes."),
}


class Clock:
    """The options of a run, with less and less of --max-seconds left."""

    def __init__(self, running: dict[str, Any]) -> None:
        self.running, self.began = running, time.monotonic()

    def left(self) -> dict[str, Any]:
        if "max_seconds" not in self.running:
            return self.running
        return {**self.running, "max_seconds": max(0.0, self.running["max_seconds"] - time.monotonic() + self.began)}


class Study:
    """One pool with its graphs and store, made from the options of a command."""

    def __init__(
        self, source: str | Dataset, n: int, pooled: dict[str, Any], running: dict[str, Any], reading: dict[str, Any],
        *, tested: bool = True,
    ) -> None:  # fmt: skip
        from grash.study.graphs import StudyGraphs
        from grash.study.run import check_batch
        from grash.study.store import Store

        check_batch(running["batch"])
        listen()
        self.source, self.reading = source if isinstance(source, str) else source.name, reading
        dataset = load(source, reading) if isinstance(source, str) else source
        if tested and not len(dataset.test):
            raise InputError(f"{dataset.name} has no test triples, by which full trainings are compared: give some.")
        self.running, self.pooled, self._clock = running, pooled, Clock(running)
        self.pool: Pool = pool_of(dataset, n, pooled)
        self.graphs: StudyGraphs = StudyGraphs(self.pool)
        self.store: Store = Store.of(running["store"], self.pool)

    def limits(self) -> dict[str, Any]:
        """Where to compute, and how much longer."""
        return {"device": self.running["device"], "max_seconds": self._clock.left().get("max_seconds")}

    def run(self, cells: list[Cell]) -> bool:
        """Trains what is missing, after saying how long that takes; whether all is there then."""
        from grash.study.estimate import UNKNOWN
        from grash.study.plan import plan_cells
        from grash.study.run import run_cells

        limits, pace = self.limits(), UNKNOWN
        if self.running["plan"] or limits["max_seconds"] != 0:
            plan = plan_cells(self.graphs, cells, self.store, device=limits["device"])
            show("\n".join(plan.lines))
            pace = plan.pace
        if self.running["plan"]:
            return False
        given = {"batch": self.running["batch"], "pace": pace, "say": show}
        ran = run_cells(self.graphs, cells, self.store, **self.limits(), **given)
        say(f"{ran.done} of {ran.asked} cells are in {self.store.path}")
        return ran.finished

    def search(self, asked: list[Asked]) -> bool:
        """Runs the searches that are missing; whether all are there then."""
        from grash.study.searches import print_searches, run_searches

        for one in asked:
            one.settings(self.pool)  # says now what is wrong with one of them, not after the others
        if self.running["plan"] or self.limits()["max_seconds"] != 0:
            show(print_searches(self.graphs, asked, self.store, device=self.running["device"]))
        if self.running["plan"]:
            return False
        return run_searches(self.graphs, asked, self.store, **self.limits(), say=show)

    def command(self, verb: str, *more: object) -> str:
        """The command that makes a page again from the same store."""
        return study_command(verb, self.source, self.pool.n, self.pooled, self.running, self.reading, *more)

    def page(self, page: Page, finished: bool) -> None:
        if self.running["plan"]:
            raise typer.Exit(0)
        put_page(page, self.running["out"], finished)


def study_command(
    verb: str, source: str, n: int, pooled: dict[str, Any], running: dict[str, Any], reading: dict[str, Any],
    *more: object,
) -> str:  # fmt: skip
    """A command as it was given, with all that its page depends on; how fast it was to run is left out."""
    given: list[object] = [w for name in POOL if name != "fixed" for w in (f"--{name}", _plain(pooled[name]))]
    given += [word for text in pooled.get("fixed", []) for word in ("--set", text)]
    return command("grash", "study", verb, source, "--n", n, *given, *running_words(running, reading), *more)


def running_words(running: dict[str, Any], reading: dict[str, Any]) -> list[object]:
    """The options of a command that say how its source is read and where results lie."""
    given: list[object] = []
    for name, value in reading.items():
        option = option_of(name)
        yes_no = option if value else option.replace("--", "--no-", 1)
        given += [yes_no] if isinstance(value, bool) else [option, _plain(value)]
    places = [name for name in ("store", "out") if running[name] != RUNNING[name][1]]
    return given + [w for name in places for w in (f"--{name}", running[name])]


def put_page(page: Page, out: Path, finished: bool) -> None:
    """Writes a page and leaves; one that would replace a page made from more is an error when all has been run."""
    from grash.study.pages import write_page

    try:
        say(f"page: {write_page(page, out, refuse_less=True)}")
    except InputError as error:
        if finished:
            raise
        say(str(error))
    leave(finished)


def leave(finished: bool) -> None:
    """Ends a command whose work is not all done with a code that says so."""
    if not finished:
        say("Not all has been run: the same command goes on.")
        raise typer.Exit(UNFINISHED)


def load(source: str, reading: dict[str, Any]) -> Dataset:
    from grash import api

    return api.load_dataset(source, **reading)


def models_of(names: str) -> list[str]:
    """The models of an option --models."""
    found = listed(names)
    if not found:
        raise ConfigError(f"--models '{names}' names no model: give one or more, with commas, as in complex,rotate.")
    return found


def listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def pool_of(dataset: Dataset, n: int, given: dict[str, Any]) -> Pool:
    """The configurations that a command asks for, or what is wrong with them."""
    from grash.api_given import resolved_space
    from grash.study.pool import make_pool

    if n < 3:
        raise ConfigError(f"--n {n}: give 3 or more configurations, fewer say nothing about a ranking.")
    space, label = resolved_space(given["space"]), given.get("label")
    fixed = dict(assignment(text) for text in given.get("fixed", []))
    named = {"space": space, "label": label or Path(given["space"]).stem, "fixed": fixed}
    return make_pool(dataset, n=n, **{**given, **named})


def show(lines: str) -> None:
    print(lines, flush=True)


def _plain(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value
