"""How long numba compiles in this process, which no time limit counts."""

from __future__ import annotations

import time

import numba

from grash.kernels import device
from grash.kernels.device import call_when_compiling, compile_seconds


def test_seconds_of_compiling_are_counted_once_where_loops_call_each_other() -> None:
    @numba.njit
    def inner(x: int) -> int:
        return x + 1

    @numba.njit
    def outer(x: int) -> int:
        return inner(x) + inner(2 * x)

    before, began = compile_seconds(), time.monotonic()
    assert outer(1) == 5
    took, first = time.monotonic() - began, compile_seconds() - before
    assert 0 < first <= took
    outer(2)
    assert compile_seconds() - before == first  # compiled already


def test_a_long_compilation_is_announced_once() -> None:
    said: list[str] = []
    call_when_compiling(lambda: said.append("compiling"))
    timer = device._CompileTimer()
    timer.tell = lambda: said.append("compiling")
    for seconds in (0.2, 2.0, 2.0):
        timer.on_start(None)
        timer.began -= seconds
        timer.on_end(None)
    assert said == ["compiling"]
    device._compile_timer().tell = None
