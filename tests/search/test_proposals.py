"""Proposals: inside the space, more of them begin with fewer, origins are told, a quarter of a portfolio is uniform."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grash.errors import ConfigError
from grash.search.named_spaces import space_of
from grash.search.proposals import Proposal, given_proposals, propose
from grash.search.settings import make_settings

HOW = ("random", "sobol", "portfolio")


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@given(seed=st.integers(0, 10**9), start=st.integers(0, 12), count=st.integers(0, 12))
def test_more_proposals_begin_with_fewer(how: Any, seed: int, start: int, count: int) -> None:
    space = space_of("default", "complex", 5_000)
    options: dict[str, Any] = {"seed": seed, "model": "complex", "n_entities": 5_000}
    many = propose(space, how, start + count, **options)
    assert propose(space, how, count, start=start, **options) == many[start:]
    assert propose(space, how, start, **options) == many[:start]
    assert [space.check(p.values) for p in many] == [p.values for p in many]


def origins(count: int, model: str = "complex", name: str = "default") -> list[str]:
    found = propose(space_of(name, model), "portfolio", count, seed=1, model=model)
    return [p.origin.split(":")[0] for p in found]


def test_a_portfolio_is_a_quarter_winners_half_prior_a_quarter_uniform() -> None:
    assert origins(8) == ["portfolio", "uniform", "prior", "prior", "uniform", "portfolio", "prior", "prior"]
    assert Counter(origins(32)) == {"portfolio": 8, "prior": 16, "uniform": 8}


@pytest.mark.parametrize("count", range(2, 70))
def test_at_least_a_quarter_is_uniform_wherever_one_stops(count: int) -> None:
    assert 4 * origins(count).count("uniform") >= count


def test_without_winners_the_prior_takes_their_place() -> None:
    assert Counter(origins(16, "rescal", "paper")) == {"portfolio": 3, "prior": 9, "uniform": 4}
    assert Counter(origins(64))["portfolio"] == 16 and Counter(origins(256))["portfolio"] < 64


def test_an_origin_names_its_winner() -> None:
    first = propose(space_of("paper", "rotate"), "portfolio", 1, seed=0, model="rotate")[0]
    assert first.origin == "portfolio:grash-yago3-10-rotate-combined"
    assert (first.values["lr"], first.values["negatives_tail"]) == (0.21972, 823)


def test_seeds_differ_and_models_share_points() -> None:
    complex_, rotate = space_of("paper", "complex"), space_of("paper", "rotate")
    for how in ("random", "sobol"):
        ours = propose(complex_, how, 8, seed=3, model="complex")
        assert ours != propose(complex_, how, 8, seed=4, model="complex")
        theirs = propose(rotate, how, 8, seed=3, model="rotate")
        assert [p.values["lr"] for p in ours] == [p.values["lr"] for p in theirs]
        assert {p.origin for p in ours} == {how}


def test_sobol_points_fill_every_eighth_once() -> None:
    rates = [p.values["lr"] for p in propose(space_of("paper", "complex"), "sobol", 8, seed=0, model="complex")]
    shares = (np.log(rates) - np.log(0.0003)) / (np.log(1.0) - np.log(0.0003))
    assert sorted((shares * 8).astype(int)) == list(range(8))


def test_a_users_configuration_must_lie_in_the_space() -> None:
    def proposed(**values: Any) -> Any:
        initial = [{"values": values, "origin": "user:mine.yaml"}]
        [(_, proposal)] = given_proposals(make_settings({"space": "paper", "initial": initial}), 10_000)
        return proposal

    given_ = {"lr": 0.1, "negatives_head": 100, "negatives_tail": 200}
    wanted = space_of("paper", "complex").with_fixed({"dim": 128}).check(given_)
    assert proposed(**given_) == Proposal(wanted, "user:mine.yaml") and wanted["init"] == "xavier_normal"
    with pytest.raises(ConfigError, match="^mine.yaml: lr=3.0 is outside the space: it is from 0.0003 to 1"):
        proposed(lr=3.0)


def test_an_unknown_way_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match="proposals='grid' is not known: give random, sobol or portfolio"):
        propose(space_of("paper", "complex"), "grid", 3, seed=0, model="complex")
