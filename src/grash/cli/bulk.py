"""Answers to files of questions, millions of them: names become ids first, then blocks of answers are written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from grash.cli.answers import PARTS, AnswerParts, write_answers
from grash.cli.console import say, seldom, status_line
from grash.errors import INTERRUPTED, InputError
from grash.formatting import format_duration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from grash.api.model import Model, Query

BLOCK = 20_000  # questions answered and written together


class Resolver:
    """Turns the fields of a line into a question; names that it has seen are looked up once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.entity = lru_cache(1 << 20)(model.entity_id)
        self.relation = lru_cache(1 << 16)(model.relation_id)

    def __call__(self, row: list[str]) -> Query:
        from grash.api.model import Query

        head, relation, tail = [*row, "?"][:3]
        if (n := (head, relation, tail).count("?")) != 1:
            raise InputError(f"found {n} question marks. Exactly one of head, relation and tail must be ?.")
        ends = (None if end == "?" else self.entity(end) for end in (head, tail))
        return Query(next(ends), None if relation == "?" else self.relation(relation), next(ends))


@dataclass(frozen=True, eq=False)
class Bulk:
    """Questions by ids with the options of their answers, which come as columns, block by block."""

    model: Model
    folder: Path
    asked: list[Query]
    k: int
    filters: dict[str, Any]

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        import numpy as np

        parts = ((-1 if part is None else part for part in (q.head, q.relation, q.tail)) for q in self.asked)
        return np.array([tuple(three) for three in parts], np.int64).reshape(-1, 3)

    @cached_property
    def allowed(self) -> NDArray[np.int64] | None:
        filters = (self.filters[name] for name in ("answer_type", "type_relation", "candidates"))
        allowed = self.model.allowed_entities(*filters)
        if allowed is not None and any(q.asked == "relation" for q in self.asked):
            raise InputError("A question for a relation has no candidates or answer type: these are about entities.")
        return allowed

    @property
    def columns(self) -> tuple[str, ...]:
        probability = () if self.model.calibration is None else ("probability",)
        return (*PARTS, "asked", "rank", "score", "known", *probability)

    def plan(self) -> dict[str, Any]:
        """Return what the answers depend on."""
        from grash.files import CHECKSUMS_FILE
        from grash.models.store import model_folder

        model = (model_folder(self.folder) / CHECKSUMS_FILE).read_bytes()
        kept = b"" if self.allowed is None else self.allowed.tobytes()
        digests = [hashlib.sha256(part).hexdigest() for part in (self.ids.tobytes(), model, kept)]
        flags = {name: self.filters[name] for name in ("new_only", "like_known")}
        return {
            "questions": digests[0],
            "model": digests[1],
            "allowed": digests[2],
            "k": self.k,
            "block": BLOCK,
            **flags,
        }

    def answers(self, first: int) -> list[list[Any]]:
        """Return the columns of the answers to a block of questions."""
        import numpy as np

        asked = self.ids[first : first + BLOCK]
        options = {name: self.filters[name] for name in ("new_only", "like_known")}
        found = self.model.answer_arrays(asked, self.k, allowed=self.allowed, **options)
        triples, column = asked[found.question], (asked[found.question] < 0).argmax(1)
        triples[np.arange(len(triples)), column] = found.answer
        kinds = (self.model.entity_name, self.model.relation_name, self.model.entity_name)
        names = [_names(name, triples[:, i]) for i, name in enumerate(kinds)]
        rest = [[PARTS[i] for i in column.tolist()], found.ranks().tolist(), found.score.tolist(), found.known.tolist()]
        return [*names, *rest, *([] if found.probability is None else [found.probability.tolist()])]


def _names(name_of: Callable[[int], str], ids: NDArray[np.int64]) -> list[str]:
    """Return the names of ids; each distinct one is looked up once."""
    import numpy as np

    distinct, places = np.unique(ids, return_inverse=True)
    return np.array([name_of(i) for i in distinct.tolist()], object)[places].tolist() if len(ids) else []


def write_bulk(bulk: Bulk, out: Path | None) -> None:
    """Write all answers: to a file in parts that a second run uses again, or to stdout."""
    starts = range(0, len(bulk.asked), BLOCK)
    if out is None:
        write_answers(bulk.columns, (row for first in starts for row in zip(*bulk.answers(first))), None)
        return
    parts, began, n_done = AnswerParts(out, bulk.columns, bulk.plan()), time.monotonic(), 0
    kept = sum(parts.has(i) for i in range(len(starts)))
    if kept:
        say(f"{kept:,} of {len(starts):,} parts are there from an earlier run.")
    try:
        with status_line(keep=False) as draw_now:
            draw = seldom(draw_now)
            for i, first in enumerate(starts):
                if not parts.has(i):
                    parts.write(i, bulk.answers(first))
                    n_done += min(BLOCK, len(bulk.asked) - first)
                    speed = n_done / max(time.monotonic() - began, 1e-9)
                    done = min(first + BLOCK, len(bulk.asked))
                    left = format_duration((len(bulk.asked) - done) / speed)
                    draw(f"{done:,} of {len(bulk.asked):,} questions, {speed:,.0f} per second, {left} left")
    except KeyboardInterrupt:
        n = sum(parts.has(i) for i in range(len(starts)))
        say(f"Interrupted. {n:,} of {len(starts):,} parts are written; run the same command again to continue.")
        raise typer.Exit(INTERRUPTED) from None
    parts.join(len(starts))
