"""Count what the first round of a search compiles on a GPU with an empty Triton cache, and how long it takes.

    python benchmarks/count_compiles.py [--space default] [--model complex] [--dim 512] [--entities 2034] [--time]

Needs no GPU. Draws the configurations, stacks them as `engines/local` does with unlimited memory, rehearses the step
and the validation of every stack, and lists the distinct kernels: what is compiled in (constants, and for integers and
addresses whether 16 divides them) and differs between kernels of one name. Triton compiles for --capability with its
bundled `ptxas`. --time: one after the other, by pass; --together: with so many threads, as a search does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from grash.engines.trainer import stack_key
from grash.kernels import compile_ahead
from grash.search.proposals import make_configurations
from grash.search.settings import SearchSettings
from grash.training.config import TrainConfig, make_config
from grash.training.fused import compile_stacks, why_not


@dataclass(eq=False)
class Kernel:
    """name, what is compiled in, and what compiles it; seconds by pass once it has been."""

    name: str
    fixed: dict[str, str]
    compile: Callable[[], Any]
    seconds: Counter[str] = field(default_factory=Counter)


class NoCard:
    """A driver that only names the target to compile for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="default")
    parser.add_argument("--model", default="complex", help="one, or several with commas")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--entities", type=int, default=2034)
    parser.add_argument("--relations", type=int, default=42)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--together", type=int, metavar="THREADS")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TRITON_CACHE_DIR"] = empty
        count(given)


def count(given: argparse.Namespace) -> None:
    driver.set_active(NoCard(given.capability))
    stacks = stacks_of(given)
    began = time.perf_counter()
    kernels = rehearsed(stacks, given.entities, given.relations)
    print(f"{len(kernels)} kernels for {len(stacks)} stacks, listed in {time.perf_counter() - began:.2f} s")
    if given.together:
        began = time.perf_counter()
        os.sched_getaffinity = lambda pid: set(range(given.together))  # type: ignore[assignment]
        compile_ahead._start_compiling({str(number): kernel.compile for number, kernel in enumerate(kernels)})
        for future in compile_ahead._compiling.values():
            future.result()
        print(f"compiled by {given.together} threads in {time.perf_counter() - began:.1f} s")
    elif given.time:
        compile_in_turn(kernels)
    show(kernels)


def stacks_of(given: argparse.Namespace) -> list[list[TrainConfig]]:
    settings = SearchSettings(
        models=tuple(given.model.split(",")), dim=given.dim, space=given.space, n_trials=given.trials
    )
    stacks: dict[Any, list[TrainConfig]] = {}
    for configuration in make_configurations(settings, given.entities, given.trials):
        config = make_config(configuration.values)
        reasons = [r for r in why_not(config, torch.device("meta")) if not r.startswith("the device")]
        if reasons:
            print(f"configuration {configuration.number} uses the unfused step: {'; '.join(reasons)}")
        else:
            stacks.setdefault(stack_key(config), []).append(config)
    return list(stacks.values())


def rehearsed(stacks: Sequence[Sequence[TrainConfig]], n_entities: int, n_relations: int) -> list[Kernel]:
    """The distinct kernels, which then are not compiled yet."""
    found, begin = [], compile_ahead._start_compiling
    calls: list[Any] = []
    knobs.runtime.jit_cache_hook = lambda **words: calls.append(words) or False
    taken: dict[str, Callable[[], Any]] = {}
    submit = compile_ahead._CompileMode.submit

    def noting(self: Any, key: str, compile_kernel: Callable[[], Any], finish: Any) -> None:
        if key not in taken:
            taken[key] = compile_kernel
            found.append(Kernel(calls[-1]["fn"].name, fixed_in(calls[-1]), compile_kernel))

    compile_ahead._CompileMode.submit = noting  # type: ignore[method-assign]
    compile_ahead._start_compiling = lambda found: None
    try:
        compile_stacks(stacks, n_entities, n_relations)
    finally:
        compile_ahead._CompileMode.submit, compile_ahead._start_compiling = submit, begin  # type: ignore[method-assign]
        knobs.runtime.jit_cache_hook = None
    return found


def fixed_in(words: dict[str, Any]) -> dict[str, str]:
    names = words["fn"].jit_function.arg_names
    data = json.loads(words["compile"]["specialization_data"])
    fixed = {names[place]: str(value) for [place], value in zip(data["constant_keys"], data["constant_vals"])}
    divided = {names[place]: "16 |" for [place] in data["attrs_keys"]}
    kinds = {name: kind for name, kind in data["signature"].items() if kind != "constexpr"}
    options = {name: str(data["options"][name]) for name in ("num_warps", "num_stages")}
    return fixed | {name: f"{kinds[name]} {divided.get(name, '')}".strip() for name in kinds} | options


def compile_in_turn(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:

        def note(
            src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool, kernel: Any = kernel
        ) -> None:
            kernel.seconds["python"] = times.ir_initialization / 1e6
            kernel.seconds.update({name: value / 1e6 for name, value in times.lowering_stages})
            kernel.seconds["all"] = times.total / 1e6

        knobs.compilation.listener = note
        kernel.compile()
    knobs.compilation.listener = None


def show(kernels: Sequence[Kernel]) -> None:
    total = sum((k.seconds for k in kernels), Counter())
    passes = [name for name in total if name != "all"]
    if total:
        print(f"{'kernel':20}{'n':>4}{'seconds':>9}  " + "".join(f"{name:>8}" for name in passes) + "  differs by")
    for name in dict.fromkeys(k.name for k in kernels):
        some = [k for k in kernels if k.name == name]
        values = {what: sorted({k.fixed.get(what, "") for k in some}) for what in some[0].fixed}
        differs = ", ".join(f"{what} ({' '.join(v)})" for what, v in values.items() if len(v) > 1)
        spent = sum((k.seconds for k in some), Counter())
        times = f"{spent['all']:9.1f}  " + "".join(f"{spent[p]:8.1f}" for p in passes) + "  " if total else "  "
        print(f"{name:20}{len(some):4}{times}{differs}")
    if total:
        print(f"{'all':20}{len(kernels):4}{total['all']:9.1f}  " + "".join(f"{total[p]:8.1f}" for p in passes))


if __name__ == "__main__":
    main()
