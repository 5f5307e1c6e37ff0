"""The training steps of other libraries, for the benchmarks of both devices: plain PyTorch, PyG, PyKEEN."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Embedding

from harness import Timing

Step = Callable[[], object]
_MOST_PAIRS = 1 << 21  # of a step that are written out as triples, 1 GiB a tensor at d = 128


@dataclass(frozen=True)
class Setting:
    """What a step is asked to do: triples (n, 3), negatives (heads, tails) that the batch shares."""

    triples: np.ndarray
    n_entities: int
    n_relations: int
    negatives: tuple[int, int]
    model: str = "complex"
    norm: int = 1
    dim: int = 128
    batch: int = 1024
    device: str = "cuda"

    def drawer(self) -> Callable[[], Tensor]:
        """Draws ids (3, B) of positives."""
        ids = torch.from_numpy(np.array(self.triples)).to(self.device).long()
        return lambda: ids[torch.randint(len(ids), (self.batch,), device=self.device)].T

    def others(self, count: int) -> Tensor:
        """(count,) entities, none twice."""
        return torch.randperm(self.n_entities, device=self.device)[:count]


def autograd_step(setting: Setting) -> Step:
    """The step as one writes it first: sparse embeddings, autograd, softmax, torch's Adagrad."""
    s, rotates = setting, setting.model == "rotate"
    entity = Embedding(s.n_entities, s.dim, sparse=True, device=s.device)
    relation = Embedding(s.n_relations, s.dim // 2 if rotates else s.dim, sparse=True, device=s.device)
    optimizer = torch.optim.Adagrad([entity.weight, relation.weight], lr=0.05)
    draw = s.drawer()
    torch.backends.cuda.matmul.allow_tf32 = True

    def loss_of() -> Tensor:
        head, kind, tail = draw()
        h, r, t = entity(head), relation(kind), entity(tail)
        for_tails, for_heads = _queries(h, r, t, s.model)
        positive = _row_scores(for_tails, t, s)
        losses = []
        for queries, count in ((for_heads, s.negatives[0]), (for_tails, s.negatives[1])):
            losses.append(_softmax_loss(positive, _scores(queries, entity(s.others(count)), s)))
        return losses[0] + losses[1]

    return _stepping(loss_of, optimizer)


def pyg_steps(setting: Setting) -> dict[str, Step]:
    """Steps with the models of `torch_geometric.nn.kge`, autograd, torch's Adagrad, dense and sparse gradients: as in
    PyG's own example by its `loss` of one negative for each positive, which is all it offers; "all": with as many as
    are shared, each pair written out as a triple for its `forward`, by the softmax, where these are not too many. Its
    RotatE takes the Euclidean length whatever the norm, its TransE scales rows to length 1 first."""
    if importlib.util.find_spec("torch_geometric") is None:
        print("    PyG is not installed")
        return {}
    many = setting.batch * sum(setting.negatives) <= _MOST_PAIRS
    steps = {}
    for every in (False, True) if many else (False,):
        for sparse in (False, True):
            name = f"{'sparse' if sparse else 'dense'}{', all' if every else ''}"
            steps[name] = _pyg_step(setting, sparse=sparse, every=every)
    return steps


def _pyg_step(setting: Setting, *, sparse: bool, every: bool) -> Step:
    from torch_geometric.nn import kge

    s, sizes = setting, (setting.n_entities, setting.n_relations)
    if s.model == "transe":
        model = kge.TransE(*sizes, hidden_channels=s.dim, p_norm=float(s.norm), sparse=sparse)
    else:
        kind_of = {"complex": kge.ComplEx, "rotate": kge.RotatE}[s.model]
        model = kind_of(*sizes, hidden_channels=s.dim // 2, sparse=sparse)
    model = model.to(s.device)
    draw = s.drawer()

    def of_every() -> Tensor:
        ids = draw()
        positive, losses = model(*ids), []
        for side, count in zip((0, 2), s.negatives):
            triples = list(ids.repeat_interleave(count, 1))
            triples[side] = s.others(count).repeat(s.batch)
            losses.append(_softmax_loss(positive, model(*triples).reshape(s.batch, count)))
        return losses[0] + losses[1]

    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    return _stepping(of_every if every else lambda: model.loss(*draw()), optimizer)


def pykeen_step(
    triples: np.ndarray,
    n_entities: int,
    n_relations: int,
    negatives: int,
    dim: int,
    batch: int,
    device: str = "cpu",
    batches: int = 2,
) -> Timing:
    """Seconds per batch of PyKEEN's loop, ComplEx, with `negatives` per positive (it corrupts one side of each)."""
    warnings.simplefilter("ignore")
    from pykeen.models import ComplEx
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import CoreTriplesFactory

    some = torch.from_numpy(np.array(triples[: batch * batches])).long()
    factory = CoreTriplesFactory(some, num_entities=n_entities, num_relations=n_relations)
    model = ComplEx(triples_factory=factory, embedding_dim=dim // 2, loss="crossentropy", random_seed=0).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loop = SLCWATrainingLoop(
        model=model, triples_factory=factory, optimizer=optimizer,
        negative_sampler="basic", negative_sampler_kwargs={"num_negs_per_pos": negatives},
    )  # fmt: skip
    seconds = []
    with torch.enable_grad():
        for _ in range(4):
            start = time.perf_counter()
            loop.train(factory, num_epochs=1, batch_size=batch, use_tqdm=False, sub_batch_size=None)
            seconds.append((time.perf_counter() - start) / batches)
    p20, median, p80 = np.quantile(seconds[1:], [0.2, 0.5, 0.8])
    return Timing(float(median), float(p20), float(p80), len(seconds) - 1)


def _stepping(loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def call() -> None:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()

    return call


def _softmax_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """(B,), (B, N) → a scalar: the positive stands first."""
    logits = torch.cat([positive[:, None], negative], 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))


def _queries(h: Tensor, r: Tensor, t: Tensor, model: str) -> tuple[Tensor, Tensor]:
    """Rows (B, D) that tails, and that heads are compared with."""
    if model == "transe":
        return h + r, t - r
    turn = torch.complex(r.cos(), r.sin()) if model == "rotate" else _complex(r)
    return tuple(torch.view_as_real(x).flatten(-2) for x in (_complex(h) * turn, _complex(t) * turn.conj()))


def _row_scores(queries: Tensor, answers: Tensor, setting: Setting) -> Tensor:
    """(…, D), (…, D) → (…)."""
    if setting.model == "complex":
        return (queries * answers).sum(-1)
    if setting.model == "transe":
        return -(queries - answers).norm(p=setting.norm, dim=-1)
    return -(_complex(queries) - _complex(answers)).abs().sum(-1)


def _scores(queries: Tensor, candidates: Tensor, setting: Setting) -> Tensor:
    """(B, D), (N, D) → (B, N)."""
    if setting.model == "complex":
        return queries @ candidates.T
    if setting.model == "transe":
        return -torch.cdist(queries, candidates, p=float(setting.norm))
    return _row_scores(queries[:, None], candidates[None], setting)


def _complex(rows: Tensor) -> Tensor:
    """(…, D) → (…, D/2), real and imaginary parts in turn."""
    return torch.view_as_complex(rows.unflatten(-1, (-1, 2)))
