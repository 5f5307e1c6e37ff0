"""Scores and filtered ranks against PyKEEN's, for the same embeddings."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from grash.data.known_answers import KnownAnswers
from grash.evaluation.ranking import Ranker
from grash.models import MODELS, KgeModel
from grash.training.config import make_config
from grash.training.initial import initial_model
from oracles import random_triples

pytestmark = pytest.mark.filterwarnings("ignore")  # PyKEEN warns on import and in use

E, R, D = 30, 3, 8
# PyKEEN's RotatE measures the Euclidean length of the complex difference, whatever p it is given (1.11.1).
VARIANTS = [("complex", 1), ("distmult", 1), ("rotate", 2), ("transe", 1), ("transe", 2)]
BY_AUTOGRAD = [("simple", 1), ("quate", 1), ("mure", 1), ("pairre", 1), ("pairre", 2)]


def interleaved(rows: torch.Tensor) -> torch.Tensor:
    """(n, D) in halves → (n, D) as PyKEEN stores complex numbers: real and imaginary parts in turn."""
    real, imaginary = rows.chunk(2, -1)
    return torch.stack([real, imaginary], -1).reshape(len(rows), -1)


def embeddings(name: str, *, integers: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    width = MODELS[name].relation_width(D)
    if integers:
        entity = torch.randint(-2, 3, (E, D), generator=generator).float()
        relation = torch.randint(-2, 3, (R, width), generator=generator).float()
        if name == "rotate":  # unturned and on the real line, where moduli are integers in PyKEEN's arithmetic too
            entity[:, D // 2 :] = 0
            relation.zero_()
        return entity, relation
    return torch.randn(E, D, generator=generator), torch.randn(R, width, generator=generator)


def theirs(name: str, norm: int, entity: torch.Tensor, relation: torch.Tensor, triples: np.ndarray) -> Any:
    """A PyKEEN model that holds these tables."""
    from pykeen.models import ComplEx, DistMult, RotatE, TransE
    from pykeen.triples import CoreTriplesFactory

    factory = CoreTriplesFactory(torch.from_numpy(triples).long(), num_entities=E, num_relations=R)
    if name == "complex":
        model, tables = (
            ComplEx(triples_factory=factory, embedding_dim=D // 2),
            (interleaved(entity), interleaved(relation)),
        )
    elif name == "rotate":
        turns = interleaved(torch.cat([relation.cos(), relation.sin()], 1))
        model, tables = RotatE(triples_factory=factory, embedding_dim=D // 2), (interleaved(entity), turns)
    elif name == "distmult":
        model, tables = DistMult(triples_factory=factory, embedding_dim=D), (entity, relation)
    else:
        model, tables = TransE(triples_factory=factory, embedding_dim=D, scoring_fct_norm=norm), (entity, relation)
    for representations, table in zip((model.entity_representations, model.relation_representations), tables):
        weights = representations[0]._embeddings.weight
        with torch.no_grad():
            weights.copy_(table.reshape(weights.shape))
    return model.eval()


def theirs_by_parts(name: str, norm: int, entity: torch.Tensor, relation: torch.Tensor) -> tuple[Any, Any, Any]:
    """PyKEEN's interaction, and functions from our rows to its representations of entities and relations."""
    from pykeen.nn import modules

    if name == "simple":
        return modules.SimplEInteraction(), lambda e: e.chunk(2, -1), lambda r: r.chunk(2, -1)
    if name == "quate":

        def quaternions(rows: torch.Tensor) -> torch.Tensor:
            return rows.unflatten(-1, (4, -1)).mT

        return (
            modules.QuatEInteraction(), quaternions, lambda r: torch.nn.functional.normalize(quaternions(r), dim=-1),
        )  # fmt: skip
    if name == "mure":

        def entities(e: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return e[..., :D], e[..., D], e[..., D + 1]

        return modules.MuREInteraction(p=2, power_norm=True), entities, lambda r: (r[..., D:], r[..., :D])
    assert name == "pairre"
    return (
        modules.PairREInteraction(p=norm), lambda e: torch.nn.functional.normalize(e, dim=-1),
        lambda r: r.chunk(2, -1),
    )  # fmt: skip


def ours(name: str, norm: int, entity: torch.Tensor, relation: torch.Tensor) -> KgeModel:
    return MODELS[name](entity, relation, norm=norm)


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_scores_equal_pykeens(name: str, norm: int, integers: bool) -> None:
    tables = embeddings(name, integers=integers)
    triples = random_triples(0, 200, E, R)
    asked = torch.from_numpy(triples).long()
    peer, model = theirs(name, norm, *tables, triples), ours(name, norm, *tables)
    with torch.no_grad():
        found = {
            "triples": (model.score(asked), peer.score_hrt(asked)[:, 0]),
            "tails": (model.score_tails(*asked[:, :2].T), peer.score_t(asked[:, :2])),
            "heads": (model.score_heads(*asked[:, 1:].T), peer.score_h(asked[:, 1:])),
        }
    for what, (got, want) in found.items():
        exact = integers and norm == 1
        torch.testing.assert_close(
            got, want, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-4, msg=lambda m, what=what: f"{what}: {m}"
        )


@pytest.mark.parametrize(("name", "norm"), BY_AUTOGRAD)
def test_scores_by_autograd_equal_pykeens_interactions(name: str, norm: int) -> None:
    generator = torch.Generator().manual_seed(3)
    entity = torch.randn(E, MODELS[name].entity_width(D), generator=generator)
    relation = torch.randn(R, MODELS[name].relation_width(D), generator=generator)
    interaction, entities, relations = theirs_by_parts(name, norm, entity, relation)
    asked = torch.from_numpy(random_triples(0, 200, E, R)).long()
    h, t = entities(entity[asked[:, 0]]), entities(entity[asked[:, 2]])
    if name == "mure":
        h, t = (h[0], h[1]), (t[0], t[2])
    if name == "simple":  # a tail's part as a tail first
        t = t[::-1]
    want = interaction(h=h, r=relations(relation[asked[:, 1]]), t=t)
    if name == "quate":  # PyKEEN's score has the sign of the authors' code, ours that of their paper
        want = -want
    torch.testing.assert_close(ours(name, norm, entity, relation).score(asked), want, rtol=1e-5, atol=1e-4)


def test_tucker_scores_equal_pykeens() -> None:
    from pykeen.nn.modules import TuckERInteraction

    config = make_config({"model": "tucker", "dim": D})
    model, peer = initial_model(config, E, R), TuckERInteraction(embedding_dim=D).eval()
    generator = torch.Generator().manual_seed(0)
    norms = {"input_norm": peer.head_batch_norm, "query_norm": peer.head_relation_batch_norm}
    with torch.no_grad():
        peer.core_tensor.copy_(model.weights["core"].permute(1, 0, 2))
        for name, norm in norms.items():
            for ours, theirs in (("mean", norm.running_mean), ("variance", norm.running_var),
                                 ("scale", norm.weight), ("shift", norm.bias)):  # fmt: skip
                theirs.copy_(model.weights[f"{name}.{ours}"].copy_(torch.rand(D, generator=generator) + 0.5))
    asked = torch.from_numpy(random_triples(0, 200, E, R)).long()
    heads, relations, tails = asked.T
    want = peer(h=model.entity[heads], r=model.relation[relations], t=model.entity[tails])
    torch.testing.assert_close(model.score(asked), want.detach(), rtol=1e-5, atol=1e-5)


def test_conve_scores_equal_pykeens() -> None:
    """PyKEEN's layers have biases and normalize the image, too: both are switched off here."""
    from pykeen.nn.modules import ConvEInteraction

    model = initial_model(make_config({"model": "conve", "dim": 32}), E, R)
    peer = ConvEInteraction(embedding_dim=32, embedding_height=4, embedding_width=8).eval()
    generator = torch.Generator().manual_seed(0)
    model.entity[:, 32] = torch.randn(E, generator=generator)
    norms = {"map_norm": peer.hr2d[3], "query_norm": peer.hr1d[2]}
    with torch.no_grad():
        for layer in (peer.hr2d[2], peer.hr1d[0]):
            layer.bias.zero_()
        peer.hr2d[0].running_var.fill_(1 - peer.hr2d[0].eps)
        peer.hr2d[2].weight.copy_(model.weights["filters"])
        peer.hr1d[0].weight.copy_(model.weights["projection"])
        for name, norm in norms.items():
            for ours, theirs in (("mean", norm.running_mean), ("variance", norm.running_var)):
                theirs.copy_(model.weights[f"{name}.{ours}"].copy_(torch.rand(len(theirs), generator=generator) + 0.5))
    asked = torch.from_numpy(random_triples(0, 200, E, R)).long()
    heads, relations, tails = asked.T
    rows, answers = model.entity[heads], model.entity[tails]
    want = peer(h=rows[:, :32], r=model.relation[relations], t=(answers[:, :32], answers[:, 32]))
    torch.testing.assert_close(model.score(asked), want.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_filtered_ranks_equal_pykeens(name: str, norm: int, integers: bool, caplog: pytest.LogCaptureFixture) -> None:
    from pykeen.evaluation import RankBasedEvaluator

    caplog.set_level(logging.ERROR)
    tables = embeddings(name, integers=integers)
    triples = np.unique(random_triples(1, 400, E, R), axis=0)
    train, test = triples[: len(triples) // 2], triples[len(triples) // 2 :]
    peer, model = theirs(name, norm, *tables, train), ours(name, norm, *tables)
    evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False, metrics=[], add_defaults=False)
    evaluator.evaluate(
        peer,
        torch.from_numpy(test).long(),
        additional_filter_triples=[torch.from_numpy(train).long()],
        use_tqdm=False,
        batch_size=64,
    )
    ranks = Ranker(test, KnownAnswers.of(train, test, n_relations=R), E, torch.device("cpu")).rank(model)
    for side, found in (("head", ranks.head), ("tail", ranks.tail)):
        for kind, got in (
            ("realistic", found.mean),
            ("optimistic", found.optimistic),
            ("pessimistic", found.pessimistic),
        ):
            want = np.concatenate(evaluator.ranks[side, kind])
            np.testing.assert_array_equal(got, want, err_msg=f"{side} {kind}")
        options = np.concatenate(evaluator.num_candidates[side])
        np.testing.assert_array_equal(found.others + 1, options)
    if integers:
        assert int(ranks.tail.ties.sum()) > 0  # the embeddings were meant to tie
