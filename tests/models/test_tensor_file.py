"""Safetensors files written and read in pieces: what the library reads, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.host_rows import file_rows
from grash.models import store as tensor_file
from grash.models.store import read_tensors, write_tensors

NAMES = st.sampled_from(["entity", "relation", "entity.squares", "best.entity", "ü"])
SHAPES = st.one_of(st.tuples(), st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 5)))
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES, st.tuples(SHAPES, TYPES)), st.integers(1, 50))
def test_the_library_reads_what_was_written_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, tuple[tuple[int, ...], torch.dtype]], piece: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "tensors.safetensors"
    tensors = {
        name: torch.arange(torch.Size(shape).numel()).reshape(shape).to(kind) + 1
        for name, (shape, kind) in wanted.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "_PIECE_BYTES", piece)
        write_tensors(tensors, path)
        found = safetensors.torch.load_file(path)
        assert found.keys() == tensors.keys()
        back = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        read_tensors(path, back)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_rows_that_lie_apart_or_in_a_file_are_written_as_rows(tmp_path: Path) -> None:
    table = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    far = file_rows(6, 10, tmp_path)
    far.copy_(table)
    write_tensors({"apart": table[:, ::2], "far": far, "turned": table.T}, tmp_path / "t")
    found = safetensors.torch.load_file(tmp_path / "t")
    assert torch.equal(found["apart"], table[:, ::2]) and torch.equal(found["far"], table)
    assert torch.equal(found["turned"], table.T)
    again = file_rows(6, 10, tmp_path)
    read_tensors(tmp_path / "t", {"far": again})
    assert torch.equal(again, table)


def test_another_shape_or_name_is_refused(tmp_path: Path) -> None:
    write_tensors({"entity": torch.zeros(3, 2)}, tmp_path / "t")
    with pytest.raises(ValueError, match="entity has another shape"):
        read_tensors(tmp_path / "t", {"entity": torch.zeros(2, 3)})
    with pytest.raises(safetensors.SafetensorError):
        read_tensors(tmp_path / "t", {"relation": torch.zeros(3, 2)})
