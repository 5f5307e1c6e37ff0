"""Ranking by the counting kernels against the plain path, through Triton's interpreter where Triton is installed."""

from __future__ import annotations

import pytest

from triton_interpreter import interpret, needs_triton

COMPARE = """
import numpy as np, torch
from grash.data.known_answers import KnownAnswers
from grash.errors import Diverged
from grash.evaluation.counting import Counting
from grash.evaluation.ranking import Ranker
from grash.kernels.count_above_triton import Shape
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
    questions = [q for side in ("head", "tail") for q in ranker.questions[side]]
    found = Counting(model, questions, shapes and [shapes] * len(questions)).read()
    for (above, ties), side in zip(found, (wanted.head, wanted.tail)):
        assert np.array_equal(above, side.above) and np.array_equal(ties, side.ties), (model.name, above, side.above)
"""
BODIES = {
    "all models and widths": """
for name, norm, dim in [("complex", 1, 6), ("distmult", 1, 5), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7),
                        ("transe", 2, 9), ("rotate", 1, 6), ("rotate", 2, 8), ("distmult", 1, 1), ("transe", 1, 1)]:
    for values in ("floats", "ties", "integers"):
        model = model_of(name, 150, dim, 1, norm=norm, values=values, reciprocal=values == "ties")
        test, train = graph(20, 150, 2, 2), graph(300, 150, 2, 3)
        agree(model, test, train, test)
""",
    "questions that several triples ask": """
for name in ("complex", "transe", "rotate"):
    model = model_of(name, 150, 4, 3, values="ties")
    star = np.array([(7, 0, t) for t in range(40)] + [(h, 1, 3) for h in range(0, 60, 2)], np.int32)
    test = np.concatenate([star, graph(5, 150, 2, 4), star[:3], star[:3]])  # some are asked with the same truth, too
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
    "the list of open pairs is too short": """
model, test = model_of("transe", 700, 4, 0, values="equal"), graph(40, 700, 2, 0)
shape = Shape.of(40, 700, 4)
agree(model, test, test, shapes=shape)
short = Shape(shape.half, shape.truths, shape.part, 48 * 256)  # one tile's pairs find room, not more
agree(model, test, test, shapes=short)
""",
    "numbers without an order": """
test = np.array([[0, 0, 1]], np.int32)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=1), 2, CPU)
questions = ranker.questions["head"] + ranker.questions["tail"]
for bad in (torch.nan, torch.inf, 1e30):
    for place in ("entity", "relation"):
        model = model_of("distmult", 2, 2, 0)
        getattr(model, place)[0, 0] = bad
        assert isinstance(ranker.rank_many([model])[0], Diverged)
        assert Counting(model, questions).read() is None
assert Counting(model_of("distmult", 2, 2, 0), questions).read() is not None
# nothing has a place then, padding of the last tile least of all
test = graph(10, 300, 2, 0)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=2), 300, CPU)
for name, norm in [("distmult", 1), ("transe", 1), ("transe", 2), ("rotate", 1)]:
    model = model_of(name, 300, 4, 0, norm=norm)
    model.entity[299, 0] = torch.nan
    assert Counting(model, ranker.questions["tail"]).read() is None
""",
    "entities in bf16": """
for name, norm, dim in [("complex", 1, 6), ("cp", 1, 10), ("rescal", 1, 3), ("transe", 1, 7), ("transe", 2, 9),
                        ("rotate", 1, 6)]:
    for values in ("floats", "ties"):
        half = model_of(name, 150, dim, 1, norm=norm, values=values)
        half.entity = half.entity.bfloat16()
        agree(half, graph(20, 150, 2, 2), graph(300, 150, 2, 3))
half.entity[149, 0] = torch.nan
test = graph(10, 150, 2, 0)
ranker = Ranker(test, KnownAnswers.of(test, n_relations=2), 150, CPU)
assert Counting(half, ranker.questions["tail"]).read() is None
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


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", BODIES)
def test_the_kernels_count_as_the_plain_path_does(case: str) -> None:
    interpret(COMPARE + BODIES[case])
