"""The fused step on a CUDA device against the unfused implementation, itself and other trials of a stack."""

import numpy as np
import pytest
import torch

from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps, stack_states, uses_fused_step, why_not
from grash.training.initial import initial_model
from grash.training.loop import train_step
from training.single import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
R = 7
CASES = {
    "complex": {"model": "complex"},
    "complex with reciprocals, dropout and n3": {
        "model": "complex", "reciprocal": True, "dropout_entity": 0.2, "dropout_relation": 0.1,
        "penalty": "n3", "penalty_entity": 0.01, "penalty_relation": 0.02, "dim": 34,
    },
    "distmult": {"model": "distmult"},
    "distmult row by row": {
        "model": "distmult", "optimizer": "row_adagrad", "penalty": "l1", "penalty_entity": 1e-3, "dim": 6,
        "dropout_entity": 0.3,
    },
    "more negatives than entities": {"model": "complex", "negatives_head": 400, "negatives_tail": 301},
    "one negative": {"model": "complex", "negatives_head": 1, "negatives_tail": 1, "batch_size": 3},
    "more relations than lines of a batch": {"model": "complex", "n_relations": 200, "penalty": "l3"},
    "transe": {"model": "transe", "norm": 2, "penalty": "l2", "penalty_relation": 0.1},
    "transe by l1 with dropout": {"model": "transe", "norm": 1, "dropout_entity": 0.2, "reciprocal": True},
    "rotate": {"model": "rotate", "norm": 1, "penalty": "l3", "penalty_entity": 0.1, "penalty_relation": 0.1},
    "rotate by l2": {"model": "rotate", "norm": 2, "dropout_relation": 0.2, "batch_size": 130},
    "all entities": {"training": "1vsall", "penalty": "l3", "penalty_entity": 0.01},
    "all entities with dropout": {
        "training": "1vsall", "dropout_entity": 0.2, "dropout_relation": 0.1, "reciprocal": True, "dim": 34,
    },
    "all entities row by row": {"training": "1vsall", "model": "distmult", "optimizer": "row_adagrad"},
    "relations predicted": {"relation_prediction": 0.5, "dropout_entity": 0.2, "reciprocal": True},
    "many relations predicted among all entities": {
        "relation_prediction": 2.0, "model": "distmult", "training": "1vsall", "n_relations": 300,
    },
    "relations predicted by transe": {"relation_prediction": 0.5, "model": "transe", "norm": 2, "n_relations": 200},
    "rotate, self-adversarial": {
        "model": "rotate", "loss": "self_adversarial", "margin": 2.0, "temperature": 0.7, "dropout_entity": 0.1,
    },
    "transe, self-adversarial": {
        "model": "transe", "norm": 2, "loss": "self_adversarial", "margin": 1.0, "relation_prediction": 0.3,
    },
    "complex, self-adversarial": {"loss": "self_adversarial", "margin": 0.5, "temperature": 2.0},
    "no heads": {
        "negatives_head": 0, "reciprocal": True, "dropout_entity": 0.2, "penalty": "l2", "penalty_relation": 0.1,
    },
    "no tails": {"model": "transe", "norm": 2, "negatives_tail": 0, "loss": "self_adversarial"},
    "wide rotate": {"model": "rotate", "dim": 400},
    "wide transe": {"model": "transe", "norm": 2, "dim": 512},
}  # fmt: skip
L1 = {
    "transe": {"model": "transe"},
    "with dropout": CASES["transe by l1 with dropout"],
    "relations predicted": {"model": "transe", "relation_prediction": 0.5},
    "self-adversarial": {"model": "transe", "loss": "self_adversarial", "margin": 5.0, "optimizer": "row_adagrad"},
}
SQUARES = 1e-4  # sums of Adagrad in the midst of a training


def make(n_entities: int = 301, n: int = 900, n_relations: int = R, **settings: object) -> tuple[TrainConfig, Batches]:
    """Heads and tails repeat, as in a real graph; the last batch of an epoch is short."""
    rng = np.random.default_rng(0)
    heads, tails = (n_entities * rng.random((2, n)) ** np.array([[3], [2]])).astype(np.int32)
    train = np.stack([heads, rng.integers(0, n_relations, n, dtype=np.int32), tails], 1)
    values = {"dim": 32, "batch_size": 128, "negatives_head": 60, "negatives_tail": 150, "init": "normal",
              "init_std": 0.3, "lr": 0.05, "epochs": 9.4, "precision": "float32", **settings}  # fmt: skip
    config = TrainConfig(**values)
    return config, Batches(train, n_entities, n_relations, config, CUDA)


def fresh(config: TrainConfig, batches: Batches) -> TrainState:
    return TrainState.fresh(initial_model(config, batches.n_entities, batches.n_relations, device=CUDA), config)


def tensors(state: TrainState) -> list[torch.Tensor]:
    squares = [o.state["squares"] for o in (state.entity_optimizer, state.relation_optimizer)]
    return [state.model.entity, state.model.relation, *squares]


def distances(one: TrainState, other: TrainState) -> list[float]:
    return [((a - b).norm() / b.norm()).item() for a, b in zip(tensors(one), tensors(other))]


def compare_twenty(case: str, squares: float) -> None:
    """Twenty steps of both paths from the same rows, Adagrad's sums all at `squares`."""
    config, batches = make(**CASES[case])
    assert uses_fused_step(config, CUDA)
    plain, fused = fresh(config, batches), fresh(config, batches)
    for state in (plain, fused):
        for sums in tensors(state)[2:]:
            sums.fill_(squares)
    losses = FusedSteps([fused], batches, [config]).advance(20)[:, 0]
    wanted = torch.stack([train_step(plain, batches, config) for _ in range(20)])
    assert torch.allclose(losses[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert torch.allclose(losses, wanted, rtol=1e-4, atol=1e-6)
    assert max(distances(fused, plain)) < 1e-4, distances(fused, plain)


@pytest.mark.parametrize("case", ["complex", "distmult", "transe", "rotate", "rotate by l2", "all entities"])
def test_twenty_steps_from_the_start_agree_with_the_unfused_step(case):
    """A first Adagrad step is the gradient's sign: in these graphs none is so near 0 that a rounding turns it."""
    compare_twenty(case, 0.0)


@pytest.mark.parametrize("case", [case for case in CASES if "l1" not in case])
def test_twenty_steps_on_the_way_agree_with_the_unfused_step(case):
    """As if there had been steps before, so that no step is a mere sign."""
    compare_twenty(case, SQUARES)


@pytest.mark.parametrize("case", L1)
def test_each_of_twenty_steps_by_l1_agrees_with_the_unfused_step(case):
    """Each starts from the unfused state: l1's gradient is a sum of signs, which turn where two paths are a last bit
    apart, and then each goes its own way."""
    config, batches = make(**L1[case])
    assert uses_fused_step(config, CUDA)
    plain, fused = fresh(config, batches), fresh(config, batches)
    for sums in tensors(plain)[2:]:
        sums.fill_(SQUARES)
    steps = FusedSteps([fused], batches, [config])
    for _ in range(20):
        for mine, theirs in zip(tensors(fused), tensors(plain)):
            mine.copy_(theirs)
        loss = steps.advance(fused.step + 1)[0, 0]
        assert torch.allclose(loss, train_step(plain, batches, config), rtol=1e-5)
        assert max(distances(fused, plain)) < 1e-4, (plain.step, distances(fused, plain))


@pytest.mark.parametrize("precision,tolerance", [("tf32", 2e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("dim", [32, 128, 200, 512])
def test_coarser_products_are_as_far_off_as_their_factors(precision, tolerance, dim):
    config, batches = make(2000, dim=dim, precision=precision, negatives_tail=700)
    plain, fused = fresh(config, batches), fresh(config, batches)
    exact = config.changed(precision="float32")
    wanted = train_step(plain, batches, exact)
    [loss] = FusedSteps([fused], batches, [config]).advance(1)
    assert torch.allclose(loss, wanted, rtol=1e-3)
    assert max(distances(fused, plain)[2:]) < tolerance  # squares of gradients


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("case", ["complex", "distmult row by row", "rotate", "all entities", "relations predicted",
                                  "rotate, self-adversarial", "complex, self-adversarial"])  # fmt: skip
def test_a_trial_is_the_same_alone_again_and_among_others(case, precision):
    config, batches = make(**CASES[case], precision=precision)
    configs = [config, config.changed(negatives_head=17, lr=0.2, variation=3),
               config.changed(negatives_tail=300, variation=5, penalty="l2", penalty_entity=0.1, dropout_entity=0.3,
                              margin=1.1, temperature=0.2, relation_prediction=0.0)]  # fmt: skip
    alone = []
    for each in configs:
        twice = [fresh(each, batches), fresh(each, batches)]
        for state in twice:
            FusedSteps([state], batches, [each]).run(20)
        assert all(torch.equal(a, b) for a, b in zip(*map(tensors, twice)))
        alone.append(twice[0])
    stack = [fresh(each, batches) for each in configs]
    stack_states(stack, n=len(stack))
    FusedSteps(stack, batches, configs).run(20)
    for state, before in zip(stack, alone):
        assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(before)))


def test_trials_of_questions_are_the_same_alone_again_and_among_others():
    config, batches = make(training="kvsall", precision="bf16", dim=128)
    configs = [config, config.changed(label_smoothing=0.1, lr=0.2, variation=3),
               config.changed(variation=5, penalty="l3", penalty_entity=0.1, penalty_relation=0.1)]  # fmt: skip
    alone = []
    for each in configs:
        assert uses_fused_step(each, CUDA)
        twice = [fresh(each, batches), fresh(each, batches)]
        for state in twice:
            FusedSteps([state], batches, [each]).run(20)
        assert all(torch.equal(a, b) for a, b in zip(*map(tensors, twice)))
        alone.append(twice[0])
    stack = [fresh(each, batches) for each in configs]
    stack_states(stack, n=len(stack))
    FusedSteps(stack, batches, configs).run(20)
    for state, before in zip(stack, alone):
        assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(before)))


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("model", ["complex", "distmult"])
def test_training_on_questions_ends_near_the_unfused_training(model, reciprocal, monkeypatch):
    config, batches = make(training="kvsall", model=model, reciprocal=reciprocal, label_smoothing=0.1, precision="bf16",
                           dim=128, init_std=0.1)  # fmt: skip
    whole, plain = fresh(config, batches), fresh(config, batches)
    for state in (whole, plain):
        for sums in tensors(state)[2:]:
            sums.fill_(SQUARES)
    assert uses_fused_step(config, CUDA)
    train(whole, batches, config)
    monkeypatch.setenv("GRASH_KERNELS", "reference")
    train(plain, batches, config)
    assert max(distances(whole, plain)) < 0.01
    assert not torch.equal(whole.model.entity, plain.model.entity)


def test_a_diverged_trial_disturbs_no_other():
    config, batches = make()
    states = [fresh(config, batches), fresh(config, batches)]
    stack_states(states, n=len(states))
    states[1].model.entity.fill_(float("nan"))
    losses = FusedSteps(states, batches, [config, config]).run(5)
    single = fresh(config, batches)
    FusedSteps([single], batches, [config]).run(5)
    assert losses[:, 1].isnan().all()
    assert torch.equal(states[0].model.entity, single.model.entity)


def test_a_stack_holds_both_losses():
    config, batches = make(loss="self_adversarial", model="rotate")
    configs = [config, config.changed(loss="softmax")]
    alone, stack = [fresh(each, batches) for each in configs], [fresh(each, batches) for each in configs]
    for each, state in zip(configs, alone):
        FusedSteps([state], batches, [each]).run(5)
    stack_states(stack, n=len(stack))
    FusedSteps(stack, batches, configs).run(5)
    assert max(d for state, before in zip(stack, alone) for d in distances(state, before)) < 1e-4


@pytest.mark.parametrize("settings", [{"schedule": "cosine", "warmup_epochs": 1.0}, {"schedule": "plateau"}])
def test_training_uses_the_fused_step_and_resumes_exactly(settings, monkeypatch):
    config, batches = make(**settings, valid_every=2.0)
    whole, parts = fresh(config, batches), fresh(config, batches)
    train(whole, batches, config, validate=lambda model: 0.5)

    class Stop(Exception):
        pass

    def stop(state):
        if state.step >= 30:
            raise Stop

    def validate(model):
        stop(parts)
        return 0.5

    with pytest.raises(Stop):
        train(parts, batches, config, validate=validate)
    train(parts, batches, config, validate=lambda model: 0.5)
    assert all(torch.equal(a, b) for a, b in zip(tensors(whole), tensors(parts)))
    monkeypatch.setenv("GRASH_KERNELS", "reference")
    plain = fresh(config, batches)
    train(plain, batches, config, validate=lambda model: 0.5)
    assert max(distances(whole, plain)) < 0.05
    assert not torch.equal(whole.model.entity, plain.model.entity)


def test_uncovered_settings_are_named():
    config, _ = make(loss="bce", optimizer="adam")
    assert why_not(config, CUDA) == [
        "loss=bce is not softmax or self_adversarial", "optimizer=adam is not adagrad or row_adagrad"
    ]  # fmt: skip
    config, _ = make(model="rotate", training="1vsall", relation_prediction=1.0)
    assert len(why_not(config, CUDA)) == 2
