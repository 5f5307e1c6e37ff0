"""Read what is recorded of a search, as objects and data frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grash.api.model import Model
from grash.errors import InputError
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.run_folder import read_search
from grash.training.config import TrainConfig, make_config


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What is recorded of a search: the state, and the model if it has been trained."""

    folder: Path
    state: SearchState

    @classmethod
    def load(cls, folder: str | Path) -> SearchResult:
        read_search(Path(folder))
        path = Path(folder) / LEDGER_FILE
        events = read_ledger(path) if path.exists() else []
        return cls(Path(folder), SearchState.replay(events))

    @property
    def best_config(self) -> TrainConfig:
        """The winner, or while the search runs the best configuration so far."""
        best = self.state.incumbent()
        number = self.state.winner if self.state.winner is not None else None if best is None else best.number
        if number is None:
            raise InputError(f"{self.folder} has no scored trial yet.")
        return make_config(self.state.configurations[number].values)

    @property
    def model(self) -> Model:
        if not (self.folder / "model" / "model.json").is_file():
            raise InputError(f"{self.folder} has no trained model: let the search finish, or train best.yaml.")
        return Model.load(self.folder / "model")

    def trials(self) -> list[dict[str, Any]]:
        """Return one row per trial and round."""
        from grash.report.summary import trial_rows

        return trial_rows(self.state)

    def trials_dataframe(self) -> Any:
        """Return the same as a polars data frame; `.to_pandas()` converts it."""
        import polars

        return polars.DataFrame(self.trials(), infer_schema_length=None)

    def report(self) -> Path:
        """Write report.html again and return its path."""
        from grash.report.page import write_report

        return write_report(self.folder)
