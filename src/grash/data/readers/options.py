"""SourceOptions: how a source is to be read and split. Everything has a default that suits most files."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from grash.data.readers.text import parse_columns, parse_separator
from grash.errors import ConfigError

Format = Literal["text", "ntriples", "nquads", "turtle", "rdfxml", "parquet", "npy", "npz"]
FORMATS: tuple[Format, ...] = get_args(Format)

DEFAULT_SHARE, DEFAULT_MOST = 0.05, 10_000


@dataclass(frozen=True)
class SourceOptions:
    """separator: one character, or tab, comma, semicolon, space, whitespace; None: guessed.
    header: whether the first line names the columns; None: guessed by its words.
    columns: what each column is ("htr"), or where head, relation and tail stand ((0, 2, 1)); None: head, relation,
        tail, or as the header says.
    literals: what becomes of RDF triples whose object is a literal.
    duplicates: what becomes of triples that repeat within train.
    valid_fraction, test_fraction: shares that are split off where a source has no such file; None: 5 %, at most
        10,000. n_valid, n_test: counts instead of shares.
    seed: of the split. format: what a file is, where its name does not say it.
    """

    separator: str | None = None
    header: bool | None = None
    columns: str | tuple[int, ...] | None = None
    literals: Literal["skip", "keep"] = "skip"
    duplicates: Literal["drop", "keep"] = "drop"
    valid_fraction: float | None = None
    test_fraction: float | None = None
    n_valid: int | None = None
    n_test: int | None = None
    seed: int = 0
    format: Format | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, list):
            object.__setattr__(self, "columns", tuple(self.columns))
        parse_separator(self.separator)
        parse_columns(self.columns)
        _check_choice("literals", self.literals, ("skip", "keep"))
        _check_choice("duplicates", self.duplicates, ("drop", "keep"))
        _check_choice("format", self.format, (None, *FORMATS))
        for name in ("valid", "test"):
            _check_share(name, getattr(self, f"{name}_fraction"), getattr(self, f"n_{name}"))
        if (self.valid_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ConfigError("valid_fraction and test_fraction together leave nothing for train: give less than 1.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}, and a number of 0 or more is needed.")

    @classmethod
    def of(cls, options: SourceOptions | None, changes: dict[str, Any]) -> SourceOptions:
        """The options with changes by keyword; ConfigError for a keyword that is none."""
        known = [f.name for f in fields(cls)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
                raise ConfigError(f"There is no option {name!r} for reading a source: {hint}")
        return cls(**{**asdict(options or cls()), **changes})

    def n_split_off(self, split: Literal["valid", "test"], n_triples: int) -> int:
        """How many of n triples go to a split that a source does not have."""
        count, share = (self.n_valid, self.valid_fraction) if split == "valid" else (self.n_test, self.test_fraction)
        if count is not None:
            return count
        if share is not None:
            return round(share * n_triples)
        return min(round(DEFAULT_SHARE * n_triples), DEFAULT_MOST)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: give one of {', '.join(map(repr, choices))}.")


def _check_share(split: str, fraction: float | None, count: int | None) -> None:
    if fraction is not None and count is not None:
        raise ConfigError(f"Both {split}_fraction and n_{split} are given: give one of them.")
    if fraction is not None and not 0 <= fraction < 1:
        raise ConfigError(f"{split}_fraction={fraction}, and a share from 0 to below 1 is needed.")
    if count is not None and count < 0:
        raise ConfigError(f"n_{split}={count}, and a count of 0 or more is needed.")
