"""Golden results: the numbers of searches, trainings, rankings and exports do not change without a word."""

import json

import pytest
from tests.golden.record import FILE, arithmetic, compute

import grash

EXPECTED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return compute(grash.load_dataset("world"), tmp_path_factory.mktemp("golden"))


@pytest.mark.slow
def test_metrics_are_those_on_record(found):
    for kind in ("searches", "trainings"):
        for name, expected in EXPECTED[0][kind].items():
            assert found[kind][name]["mrr"] == pytest.approx(expected["mrr"], abs=0.01), name


@pytest.mark.slow
def test_every_bit_is_as_on_record(found):
    same = [entry for entry in EXPECTED if entry["arithmetic"] == arithmetic()]
    if not same:
        pytest.skip("The golden bits come from other kinds of CPUs, or another version of torch or NumPy.")
    assert found == same[0]
