"""SourceOptions: how a source is read and split. The defaults suit most files."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from grash.data.readers.text import parse_columns, parse_separator
from grash.errors import ConfigError

Format = Literal["text", "ntriples", "nquads", "turtle", "rdfxml", "parquet", "npy", "npz"]
FORMATS: tuple[Format, ...] = get_args(Format)

DEFAULT_FRACTION, DEFAULT_MAX = 0.05, 10_000


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source, and how to split it if it has no valid or test."""

    separator: str | None = None  # one character, or tab, comma, semicolon, space, whitespace; None: guessed
    header: bool | None = None  # whether the first line names the columns; None: guessed from its words
    columns: str | tuple[int, ...] | None = (
        None  # "htr", or columns of head, relation, tail as (0, 2, 1); None: by header
    )
    literals: Literal["skip", "keep"] = "skip"  # RDF triples whose object is a literal
    duplicates: Literal["drop", "keep"] = "drop"  # repeated triples of train
    valid_fraction: float | None = None  # split off train if the source has no valid; None: 5 %, at most 10,000
    test_fraction: float | None = None
    n_valid: int | None = None  # number of triples instead of a fraction
    n_test: int | None = None
    seed: int = 0  # of the split
    format: Format | None = None  # of a file whose name does not show it

    def __post_init__(self) -> None:
        if isinstance(self.columns, list):
            object.__setattr__(self, "columns", tuple(self.columns))
        parse_separator(self.separator)
        parse_columns(self.columns)
        _check_choice("literals", self.literals, ("skip", "keep"))
        _check_choice("duplicates", self.duplicates, ("drop", "keep"))
        _check_choice("format", self.format, (None, *FORMATS))
        for name in ("valid", "test"):
            _check_size(name, getattr(self, f"{name}_fraction"), getattr(self, f"n_{name}"))
        if (self.valid_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ConfigError("valid_fraction and test_fraction leave nothing for train. Give less than 1 in total.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} is negative. Give 0 or more.")

    @classmethod
    def of(cls, options: SourceOptions | None, changes: dict[str, Any]) -> SourceOptions:
        """Return the options with changes by keyword. Raises ConfigError for an unknown keyword."""
        known = [f.name for f in fields(cls)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
                raise ConfigError(f"There is no option {name!r} for reading a source. {hint}")
        return cls(**{**asdict(options or cls()), **changes})

    def n_split_off(self, split: Literal["valid", "test"], n_triples: int) -> int:
        """Return how many of n triples go to a split that the source does not have."""
        count, fraction = getattr(self, f"n_{split}"), getattr(self, f"{split}_fraction")
        if count is not None:
            return count
        if fraction is not None:
            return round(fraction * n_triples)
        return min(round(DEFAULT_FRACTION * n_triples), DEFAULT_MAX)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown. Give one of {', '.join(map(repr, choices))}.")


def _check_size(split: str, fraction: float | None, count: int | None) -> None:
    if fraction is not None and count is not None:
        raise ConfigError(f"Both {split}_fraction and n_{split} are given. Give one of them.")
    if fraction is not None and not 0 <= fraction < 1:
        raise ConfigError(f"{split}_fraction={fraction} is out of range. Give a fraction from 0 to below 1.")
    if count is not None and count < 0:
        raise ConfigError(f"n_{split}={count} is negative. Give 0 or more.")
