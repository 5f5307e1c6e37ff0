"""Compiles Triton kernels in threads before their first launch; `launch` starts the kernels of steps and ranking.

A default search mixes settings that are compiled into kernels, and one set of kernels takes seconds to compile. So a
caller that knows what will run makes a `dry_run`: the same launches, on tensors of the same types (device "meta" is
enough), without launching or waiting. Threads then compile the missing kernels (Triton's passes and `ptxas` release
the interpreter lock), and a launch waits for its own kernel only. A kernel that fails here is compiled at its launch.

This relies on a private hook of Triton (tested with 3.6). With a version that lacks it or calls it in another way,
kernels are compiled at their launch.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from grash.kernels.device import count_compiling

log = logging.getLogger(__name__)

_Compile = Callable[[], Any]
_Missing = list[tuple[str, _Compile]]
_missing: ContextVar[_Missing | None] = ContextVar("missing", default=None)  # a list during a dry run
_compiling: dict[str, Future[Any]] = {}  # by Triton's key of the kernel; removed by its first launch
_launchers: set[Any] = set()  # argument types for which the host side of a launch is built
_lock = threading.Lock()


def launch(kernel: Any, grid: tuple[int, ...], /, *args: Any, **kwargs: Any) -> None:
    """Run kernel[grid](*args, **kwargs); in a dry run only note the kernel if it is not in memory."""
    is_dry_run = _missing.get() is not None
    if not is_dry_run and not _compiling:
        kernel[grid](*args, **kwargs)
        return
    hook = _compile_hook()
    if hook is None:
        return  # a dry run: without the hook nothing is ever compiling
    token = hook.set(_CompileMode())
    try:
        kernel.run(*args, grid=grid, warmup=is_dry_run, **kwargs)
        return
    except (AttributeError, TypeError) as error:  # Triton calls the hook in another way
        if is_dry_run:
            raise
        log.info("Kernels are compiled at their first launch: %s: %s", type(error).__name__, error)
        _compiling.clear()
    finally:
        hook.reset(token)
    kernel[grid](*args, **kwargs)


@contextmanager
def dry_run() -> Iterator[_Missing]:
    """Collect the kernels of the launches in the body, then start to compile them in other threads.

    Yields a list that grows by one for each launch whose kernel is not in memory. Costs about 1 ms a launch.
    """
    missing: _Missing = []
    token = _missing.set(missing)
    try:
        yield missing
    except Exception as error:
        log.info("Some kernels are compiled at their first launch: %s: %s", type(error).__name__, error)
    finally:
        _missing.reset(token)
    _start_compiling({key: compile_kernel for key, compile_kernel in missing if key not in _compiling})


@functools.cache
def _compile_hook() -> ContextVar[Any] | None:
    """Return the variable in which Triton looks for a compile mode, or None if this version has none."""
    try:
        from triton.runtime._async_compile import active_mode
    except ImportError as error:
        log.debug("Kernels are compiled at their first launch: this version of Triton has no compile hook (%s).", error)
        return None
    return active_mode


class _CompileMode:
    """Receives Triton's requests to compile. Triton's own `AsyncCompileMode` waits for all kernels at its end."""

    def submit(self, key: str, compile_kernel: _Compile, finish: Callable[[Any], None]) -> Any:
        """Return the compiled kernel, or None in a dry run."""
        missing = _missing.get()
        if missing is not None:
            missing.append((key, compile_kernel))
            return None
        began, kernel, future = time.monotonic(), None, _compiling.pop(key, None)
        if future is not None:
            try:
                kernel = future.result()
            except Exception as error:
                log.info("A kernel is compiled again: %s: %s", type(error).__name__, error)
        if kernel is None:
            kernel = compile_kernel()
        finish(kernel)
        count_compiling(time.monotonic() - began)
        return kernel


def _start_compiling(kernels: dict[str, _Compile]) -> None:
    """Compile in threads, in the order of the dry run, which is the order of the launches."""
    waiting = deque((Future[Any](), compile_kernel) for compile_kernel in kernels.values())
    futures = dict(zip(kernels, (future for future, _ in waiting)))
    for _ in range(min(len(kernels), len(os.sched_getaffinity(0)))):
        try:
            threading.Thread(target=_compile_all, args=[waiting], name="compile").start()
        except RuntimeError:  # no more threads
            return
        _compiling.update(futures)  # one thread is enough to compile all


def _compile_all(waiting: deque[tuple[Future[Any], _Compile]]) -> None:
    """Compile until the queue is empty or the main thread ends.

    An executor of the standard library would make the process wait for the whole queue. The main thread handles
    interrupts; `ptxas`, killed by one, would print a long error.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    while threading.main_thread().is_alive():
        try:
            future, compile_kernel = waiting.popleft()
        except IndexError:
            return
        try:
            kernel = compile_kernel()
            with suppress(Exception):
                _build_launcher(kernel)
            future.set_result(kernel)
        except BaseException as error:
            future.set_exception(error)
    for future, _ in waiting:
        future.cancel()


def _build_launcher(kernel: Any) -> None:
    """Build Triton's C function that launches kernels with these argument types: 0.4 s of a C compiler.

    It stays in Triton's cache on disk, where the launch finds it.
    """
    from triton.runtime.driver import driver

    types = (kernel.src.fn, *kernel.src.signature.values())
    with _lock:
        if types in _launchers:
            return
        _launchers.add(types)
    driver.active.launcher_cls(kernel.src, kernel.metadata)
