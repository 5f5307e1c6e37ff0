"""Ranking with the counting kernels against the reference, in Triton's interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triton_interpreter import interpret, needs_triton, run_interpreted

COMPARE = """
import numpy as np, torch
from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.ranking import CudaCounts, Ranker
from grash.kernels.count_above_triton import CountShape
from grash.models import MODELS

CPU = torch.device("cpu")


def graph(n, n_entities, n_relations, seed):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, m, n) for m in (n_entities, n_relations, n_entities)], 1).astype(np.int32)


def model_of(name, n_entities, dim, seed, *, norm=1, reciprocal=False, values="floats"):
    generator = torch.Generator().manual_seed(seed)
    shapes = (n_entities, dim), (4 if reciprocal else 2, MODELS[name].relation_width(dim))
    if values == "integers":
        entity, relation = (torch.randint(-2, 3, s, generator=generator).float() for s in shapes)
    else:
        entity, relation = (torch.randn(*s, generator=generator) for s in shapes)
    if values == "ties":
        entity[::3] = entity[0]
    if values == "equal":
        entity[:] = 0.1
    return MODELS[name](entity, relation, reciprocal=reciprocal, norm=norm)


def agree(model, test, *known, n_relations=2, shapes=None):
    ranker = Ranker(test, KnownAnswers.of(*known, n_relations=n_relations), model.n_entities, CPU)
    wanted = ranker.rank(model)
    found = CudaCounts(model, ranker.queries, shapes and [shapes] * len(ranker.queries)).read()
    for (above, ties), side in zip(found, (wanted.head, wanted.tail)):
        assert np.array_equal(above, side.above) and np.array_equal(ties, side.ties), (model.name, above, side.above)
"""
BODIES = {
    "all models and widths": """
for name, norm, dim in [("complex", 1, 6), ("distmult", 1, 5), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7),
                        ("transe", 2, 9), ("rotate", 1, 6), ("rotate", 2, 8), ("distmult", 1, 1), ("transe", 1, 1)]:
    for values in ("floats", "ties", "integers") if norm == 1 and dim > 5 else ("ties",):
        model = model_of(name, 150, dim, 1, norm=norm, values=values, reciprocal=values == "ties")
        test, train = graph(20, 150, 2, 2), graph(300, 150, 2, 3)
        agree(model, test, train, test)
for name in ("distmult", "transe"):
    agree(model_of(name, 20, 2047, 1), graph(3, 20, 2, 2), graph(30, 20, 2, 3))
""",
    "queries of several triples": """
for name in ("complex", "transe", "rotate"):
    model = model_of(name, 150, 4, 3, values="ties")
    star = np.array([(7, 0, t) for t in range(40)] + [(h, 1, 3) for h in range(0, 60, 2)], np.int32)
    test = np.concatenate([star, graph(5, 150, 2, 4), star[:3], star[:3]])  # some have the same truth, too
    test = np.random.default_rng(0).permutation(test)
    agree(model, test, star[::3], graph(100, 150, 2, 5))
    agree(model, test, test)
""",
    "small graphs": """
for n_entities, n in [(1, 1), (1, 5), (2, 3), (129, 17), (128, 16)]:
    test = graph(n, n_entities, 2, n)
    model = model_of("distmult", n_entities, 4, n)
    agree(model, test, test)
    agree(model, test, np.empty((0, 3), np.int32))  # no answer is known, not even the truth
everything = np.array([(h, 0, t) for h in range(12) for t in range(12)], np.int32)
agree(model_of("transe", 12, 4, 0), everything[::5], everything)  # all others are filtered
""",
    "too many open pairs for the list": """
model, test = model_of("transe", 700, 4, 0, values="equal"), graph(40, 700, 2, 0)
shape = CountShape.of(40, 700, 4)
agree(model, test, test, shapes=shape)
short = CountShape(shape.half, shape.truths, shape.part, 48 * 256)  # enough for the pairs of one tile
agree(model, test, test, shapes=short)
""",
    "numbers that are not finite": """
test = np.array([[0, 0, 1]], np.int32)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=1), 2, CPU)
for bad in (torch.nan, torch.inf, 1e30):
    for place in ("entity", "relation"):
        model = model_of("distmult", 2, 2, 0)
        getattr(model, place)[0, 0] = bad
        assert isinstance(ranker.rank_many([model])[0], Diverged)
        assert CudaCounts(model, ranker.queries).read() is None
assert CudaCounts(model_of("distmult", 2, 2, 0), ranker.queries).read() is not None
# nothing is counted then, least of all the padding of the last tile
test = graph(10, 300, 2, 0)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=2), 300, CPU)
for name, norm in [("distmult", 1), ("transe", 1), ("transe", 2), ("rotate", 1)]:
    model = model_of(name, 300, 4, 0, norm=norm)
    model.entity[299, 0] = torch.nan
    assert CudaCounts(model, ranker.queries).read() is None
""",
    "entities in bf16": """
for name, norm, dim in [("complex", 1, 6), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7), ("transe", 2, 9),
                        ("rotate", 1, 6)]:
    for values in ("floats", "ties"):
        stored = model_of(name, 150, dim, 1, norm=norm, values=values)
        stored.entity = stored.entity.bfloat16()
        agree(stored, graph(20, 150, 2, 2), graph(300, 150, 2, 3))
stored.entity[149, 0] = torch.nan
test = graph(10, 150, 2, 0)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=2), 150, CPU)
assert CudaCounts(stored, ranker.queries).read() is None
""",
    "tiny and huge numbers": """
for scale in (1e-25, 1e-12, 1e12):
    for name, norm in [("distmult", 1), ("transe", 1), ("transe", 2), ("rotate", 1)]:
        model = model_of(name, 140, 4, 5, norm=norm)
        model.entity *= scale
        if name != "rotate":
            model.relation *= scale if name == "transe" else 1
        agree(model, graph(10, 140, 2, 5), graph(50, 140, 2, 6))
""",
}


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Tracebacks by case. One process runs all cases, since starting it takes as long as some of them."""
    code = COMPARE + RUN_ALL.format(bodies=BODIES)
    done = run_interpreted(code)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


RUN_ALL = """
import json, traceback
failures = {{}}
for case, body in {bodies!r}.items():
    try:
        exec(body)
    except Exception:
        failures[case] = traceback.format_exc()
print(json.dumps(failures))
"""


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", BODIES)
def test_the_kernels_count_like_the_reference(failures: dict[str, str], case: str) -> None:
    assert case not in failures, failures[case]


OFFLOADED = """
import sys
import json
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from evaluation.test_ranking import CPU, KnownAnswers, Ranker, graph, same_model_twice
from grash.evaluation import ranking
from grash.evaluation.ranking import CudaCounts
from grash.kernels.count_above_triton import CountShape

for name, norm, dim in [("complex", 1, 6), ("cp", 1, 10), ("transe", 2, 9), ("rotate", 1, 6)]:
    here, there = same_model_twice(name, norm, dim, Path(sys.argv[1]), n=600)
    test, train = graph(20, 600, 1), graph(2000, 600, 2)
    ranker = Ranker(test, KnownAnswers.of(train, test, n_relations=2), 600, CPU)
    width = here.candidate(here.entity[:0], "tail").shape[1]
    whole = CountShape.of(20, 600, width)
    short = CountShape(whole.half, whole.truths, 512, 32 * 256)  # two blocks; there may be too many open pairs
    several = ((1 << 17, short), (25, short), (1 << 17, whole))
    for asked, shape in several if name == "complex" else several[1:2]:
        ranking._GROUP = asked
        wanted = CudaCounts(here, ranker.queries).read()
        found = CudaCounts(there, ranker.queries, [shape] * 2).read()
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted)), (name, asked, shape)
    there.entity[599] = float("nan")
    assert CudaCounts(there, ranker.queries, [short] * 2).read() is None
"""


@pytest.mark.slow
@needs_triton
def test_the_kernels_count_an_offloaded_table_block_by_block(tmp_path: Path) -> None:
    interpret(OFFLOADED, str(tmp_path), str(Path(__file__).parents[1]))
