"""The step of other libraries, for the step benchmarks of both devices."""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch

from harness import Timing


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
