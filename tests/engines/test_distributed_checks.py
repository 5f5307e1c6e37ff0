"""What ranks make sure of together before they train: differences are named, on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grash.engines.distributed import check_same_arguments, check_same_step, n_ranks_on
from grash.errors import InputError
from grash.training.distributed.communication import ProcessGroup
from training.distributed.thread_group import in_threads

SAME = {"its settings": {"dim": 4}, "--test-sample": None, "grash": "1"}


def test_the_same_command_is_accepted() -> None:
    in_threads(3, lambda group: check_same_arguments(SAME, group))


@pytest.mark.parametrize("name", SAME)
def test_what_differs_is_named(name: str) -> None:
    def work(group: ProcessGroup) -> None:
        given = {**SAME, name: "other"} if group.rank == 2 else SAME
        with pytest.raises(InputError, match=f"Rank 2 differs from rank 0 in {name}: give every machine"):
            check_same_arguments(given, group)

    in_threads(3, work)


def test_several_differences_are_named_together() -> None:
    def work(group: ProcessGroup) -> None:
        given = {**SAME, "--test-sample": group.rank, "grash": str(group.rank)}
        with pytest.raises(InputError, match="Rank 1 differs from rank 0 in --test-sample, grash: "):
            check_same_arguments(given, group)

    in_threads(2, work)


def test_a_checkpoint_that_only_some_see_is_refused() -> None:
    def work(group: ProcessGroup) -> None:
        check_same_step(7, Path("c"), group)
        with pytest.raises(InputError, match="Not all ranks see c: rank 0 is at step 1,200 and rank 1 at step 0"):
            check_same_step(1200 * (group.rank == 0), Path("c"), group)

    in_threads(2, work)


def test_ranks_of_a_machine_share_its_memory_and_not_their_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    [alone] = in_threads(1, lambda group: group)
    assert n_ranks_on(torch.device("cpu"), alone) == 4 and n_ranks_on(torch.device("cuda", 2), alone) == 1
    alone.via_host = True
    assert n_ranks_on(torch.device("cuda", 0), alone) == 4
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert n_ranks_on(torch.device("cpu"), alone) == 1
