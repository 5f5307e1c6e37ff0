"""The checked interpreter reports accesses that a device may not notice."""

from __future__ import annotations

import pytest

from triton_interpreter import interpret, needs_triton, run_interpreted

KERNEL = """
import pathlib, sys, tempfile, torch
text = '''
import triton, triton.language as tl

@triton.jit
def copy(x, out, other, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(other + i * 0, 1, mask=i < n)
    tl.store(out + i, value, mask=i < n)
'''
folder = pathlib.Path(tempfile.mkdtemp())  # Triton reads its kernels' text
(folder / "copying.py").write_text(text)
sys.path.insert(0, str(folder))
from copying import copy
memory = torch.arange(30, dtype=torch.int32)


def fails(*tensors):
    try:
        copy[(3,)](*tensors, 10, BLOCK=4)
    except Exception as error:
        print(error)
    else:
        print("no error")
"""


@pytest.mark.slow
@needs_triton
def test_accesses_inside_the_tensors_are_allowed_and_uninitialized_memory_is_not_a_number():
    interpret(KERNEL + """
copy[(3,)](memory[:10], memory[10:20], memory[20:21], 10, BLOCK=4)
assert memory.tolist() == [*range(10), *range(10), 30, *range(21, 30)], memory
copy[(3,)](memory[:10], memory[:10], memory[20:21], 10, BLOCK=4)
assert torch.empty(3).isnan().all() and (torch.empty(3, dtype=torch.int32) > 2**30).all()
""")  # fmt: skip


@pytest.mark.slow
@needs_triton
def test_an_access_outside_its_tensor_is_an_error_even_in_the_same_memory():
    done = run_interpreted(KERNEL + """
fails(memory[:9], memory[10:20], memory[20:21])
fails(memory[:10], memory[10:19], memory[20:21])
fails(memory[:10], memory[10:20], memory[:0])
fails(memory[:10], memory[5:15], memory[20:21])
""")  # fmt: skip
    expected = [
        "copy, program (2, 0, 0): load of elements 8 … 9 of x",
        "copy, program (2, 0, 0): store of elements 8 … 9 of out",
        "copy, program (0, 0, 0): atomic of elements",
        "out shares some of its bytes",
    ]
    found = done.stdout.splitlines()
    assert len(found) == len(expected) and all(e in f for e, f in zip(expected, found)), done
