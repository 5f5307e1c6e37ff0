"""Small sources that are read as if they were larger than memory, in many parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from grash.data import arrays
from grash.data.dataset import SPLITS, Dataset
from grash.data.external import prepare as prepare_module
from grash.data.external import spill
from grash.data.external.prepare import prepare_large
from grash.data.readers import text
from grash.data.readers.source import SourceOptions, recognize
from grash.data.vocabulary import Vocabulary

TINY = 1 << 12  # bytes of memory: a generation for every block, many parts


def shrink(patch: pytest.MonkeyPatch, block: int = 300, rows: int = 40) -> None:
    patch.setattr(text, "BLOCK", block)
    patch.setattr(text, "SAMPLE", 100)
    patch.setattr(spill, "COMMIT_ROWS", rows)
    for module in (arrays, spill, prepare_module):
        patch.setattr(module, "_ROWS", 17)


def lines(seed: int = 0, n: int = 400, n_names: int = 60) -> str:
    random = np.random.default_rng(seed)
    heads, tails = random.integers(0, n_names, (2, n))
    return "".join(f"node {h}\trel{r}\tnode {t}\n" for h, r, t in zip(heads, random.integers(0, 4, n), tails))


def large(source: Path, out: Path, *, memory: int = TINY, watch=None, overwrite: bool = False, **options) -> Dataset:
    prepare_large(recognize(source), out, SourceOptions(**options), memory=memory, overwrite=overwrite, watch=watch)
    return Dataset.load(out)


def check_same(found: Dataset, wanted: Dataset) -> None:
    for split in SPLITS:
        assert np.array_equal(found.split(split), wanted.split(split)), split
    assert (found.fingerprint, found.name) == (wanted.fingerprint, wanted.name)
    assert json.dumps(found.provenance) == json.dumps(wanted.provenance)
    for mine, other in ((found.entities, wanted.entities), (found.relations, wanted.relations)):
        assert isinstance(mine, Vocabulary) and isinstance(other, Vocabulary)
        assert list(mine) == list(other)
        assert [mine.find(name) for name in other] == list(range(len(other)))
        assert mine.find("absent") is None


class Stop(Exception):
    pass


def stopped(source: Path, out: Path, *, at: int, **options) -> bool:
    """Return whether a preparation was stopped at its at-th progress message."""
    count = 0

    def watch(what: str, share: float, n_triples: int) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Stop

    try:
        large(source, out, watch=watch, **options)
    except Stop:
        return True
    return False
