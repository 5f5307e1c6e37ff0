"""Ranking through a table in a file, piece by piece: the ranks of the same table in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation import ranking as far
from grash.evaluation.ranking import Ranker, Ranks
from grash.kernels.host_rows import file_rows
from grash.models import MODELS, KgeModel
from triton_interpreter import interpret, needs_triton

CPU = torch.device("cpu")
VARIANTS = [("complex", 1, 6), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7), ("transe", 2, 9), ("rotate", 1, 6)]


def graph(n: int, n_entities: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, m, n) for m in (n_entities, 2, n_entities)], 1).astype(np.int32)


def models(name: str, norm: int, dim: int, folder: Path, n: int = 151) -> tuple[KgeModel, KgeModel]:
    """The same model twice, the second one's entities in a file; small integers: many ties."""
    generator = torch.Generator().manual_seed(dim)
    entity = torch.randint(-2, 3, (n, dim), generator=generator).float()
    relation = torch.randn(4, MODELS[name].relation_width(dim), generator=generator)
    there = file_rows(n, dim, folder)
    there.copy_(entity)
    return tuple(MODELS[name](table, relation, reciprocal=True, norm=norm) for table in (entity, there))


def same(one: Ranks, other: Ranks) -> bool:
    sides = ((one.head, other.head), (one.tail, other.tail))
    return all(np.array_equal(a.above, b.above) and np.array_equal(a.ties, b.ties) for a, b in sides)


@pytest.mark.parametrize("piece", [1, 7, 10_000])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_ranks_do_not_depend_on_where_the_table_lies(
    variant: tuple[str, int, int], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "_PIECE_BYTES", piece * 4 * variant[2])
    monkeypatch.setattr(far, "_ASKED", 20)  # several walks
    here, there = models(*variant, tmp_path)
    test, train = graph(30, 151, 1), graph(400, 151, 2)
    ranker = Ranker(test, KnownAnswers.of(train, test, n_relations=2), 151, CPU)
    for work in (None, 1 << 12):
        assert same(ranker.rank(here, work_bytes=work), ranker.rank(there, work_bytes=work))


@pytest.mark.parametrize("table", ["entity", "relation"])
def test_numbers_without_an_order_are_no_ranks(table: str, tmp_path: Path) -> None:
    _, there = models("complex", 1, 6, tmp_path)
    getattr(there, table)[3, 2] = torch.nan
    test = graph(5, 151, 1)
    with pytest.raises(Diverged, match="train it anew"):
        Ranker(test, KnownAnswers.of(test, n_relations=2), 151, CPU).rank(there)


def test_no_triples_are_ranked_without_a_walk(tmp_path: Path) -> None:
    here, there = models("complex", 1, 6, tmp_path)
    ranker = Ranker(np.empty((0, 3), np.int32), KnownAnswers.of(graph(9, 151, 1), n_relations=2), 151, CPU)
    assert same(ranker.rank(here), ranker.rank(there))


KERNELS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from evaluation.test_far import CPU, KnownAnswers, Ranker, graph, models
from grash.evaluation import counting
from grash.evaluation.counting import Counting
from grash.kernels.count_above_triton import Shape

for name, norm, dim in [("complex", 1, 6), ("cp", 1, 10), ("transe", 2, 9), ("rotate", 1, 6)]:
    here, there = models(name, norm, dim, Path(sys.argv[1]), n=700)
    test, train = graph(20, 700, 1), graph(2000, 700, 2)
    ranker = Ranker(test, KnownAnswers.of(train, test, n_relations=2), 700, CPU)
    questions = [q for side in ("head", "tail") for q in ranker.questions[side]]
    width = here.candidate(here.entity[:0], "tail").shape[1]
    whole = Shape.of(20, 700, width)
    short = Shape(whole.half, whole.truths, 512, 32 * 256)  # two pieces; open pairs may find no room
    for asked, shape in ((1 << 17, short), (25, short), (1 << 17, whole)):
        counting._ASKED = asked
        wanted = Counting(here, questions).read()
        found = Counting(there, questions, [shape] * 2).read()
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted)), (name, asked, shape)
    there.entity[699] = float("nan")
    assert Counting(there, questions, [short] * 2).read() is None
"""


@pytest.mark.slow
@needs_triton
def test_the_kernels_count_piece_by_piece_as_they_do_at_once(tmp_path: Path) -> None:
    interpret(KERNELS, str(tmp_path), str(Path(__file__).parents[1]))
