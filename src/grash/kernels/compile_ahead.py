"""Kernels compiled before they are needed, many at once. The kernels of the step and of ranking are launched from here.

A default search mixes settings that are compiled in, and one set of kernels takes seconds. So whoever knows what will
run rehearses it: the same launches, by tensors of the same kinds (device "meta" will do), in which nothing is launched
and nothing waits. What Triton would have compiled is then compiled by threads (its passes and `ptxas` run outside the
interpreter's lock), and a launch waits for its own kernel alone. Keys are those of the launch, since its path is the
same; files are written by Triton's own cache, whole or not at all. What fails here is compiled when it is launched.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

log = logging.getLogger(__name__)

_Compile = Callable[[], Any]
_Lacking = list[tuple[str, _Compile]]
_rehearsed: ContextVar[_Lacking | None] = ContextVar("rehearsed", default=None)
_under_way: dict[str, Future[Any]] = {}  # by Triton's key of the compiled kernel; taken out by its first launch
_launchers: set[Any] = set()  # kinds of arguments for which the host's side of a launch is built
_lock = threading.Lock()


def launch(kernel: Any, grid: tuple[int, ...], /, *args: Any, **kwargs: Any) -> None:
    """kernel[grid](*args, **kwargs); in a rehearsal its kernel is only noted, if it is not in memory yet."""
    rehearses = _rehearsed.get() is not None
    if not rehearses and not _under_way:
        kernel[grid](*args, **kwargs)
        return
    with _answering():
        kernel.run(*args, grid=grid, warmup=rehearses, **kwargs)


@contextmanager
def rehearsal() -> Iterator[_Lacking]:
    """Inside, `launch` launches nothing; the list grows by one for each launch whose kernel is not in memory. When it
    ends, these kernels are being compiled by other threads. Costs about a millisecond a launch."""
    lacking: _Lacking = []
    token = _rehearsed.set(lacking)
    try:
        yield lacking
    except Exception as error:
        log.info("not everything is compiled ahead: %s: %s", type(error).__name__, error)
    finally:
        _rehearsed.reset(token)
    _begin({key: compile_kernel for key, compile_kernel in lacking if key not in _under_way})


def _begin(found: dict[str, _Compile]) -> None:
    """In the order of the rehearsal, which is that of the launches."""
    waiting = deque((Future[Any](), compile_kernel) for compile_kernel in found.values())
    begun = dict(zip(found, (future for future, _ in waiting)))
    for _ in range(min(len(found), len(os.sched_getaffinity(0)))):
        try:
            threading.Thread(target=_compile_all, args=[waiting], name="compile").start()
        except RuntimeError:  # no more threads
            return
        _under_way.update(begun)  # one thread comes to the end of them


def _compile_all(waiting: deque[tuple[Future[Any], _Compile]]) -> None:
    """No executor of the standard library: at its end a process would wait for all that is queued there. An interrupt
    is the main thread's to handle; `ptxas`, killed by it, would be reported at length."""
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
    """Triton's C function that launches kernels with such arguments: a compiler of its own makes it, for 0.4 s."""
    from triton.runtime.driver import driver

    kind = (kernel.src.fn, *kernel.src.signature.values())
    with _lock:
        if kind in _launchers:
            return
        _launchers.add(kind)
    driver.active.launcher_cls(kernel.src, kernel.metadata)  # stays in the cache on disk, where the launch finds it


class _Mode:
    """What Triton asks instead of compiling (`triton.AsyncCompileMode` is its own, which waits for all at its end)."""

    def submit(self, key: str, compile_kernel: _Compile, finish: Callable[[Any], None]) -> Any:
        """The kernel, or None in a rehearsal."""
        lacking = _rehearsed.get()
        if lacking is not None:
            lacking.append((key, compile_kernel))
            return None
        kernel, future = None, _under_way.pop(key, None)
        if future is not None:
            try:
                kernel = future.result()
            except Exception as error:
                log.info("compiled again: %s: %s", type(error).__name__, error)
        if kernel is None:
            kernel = compile_kernel()
        finish(kernel)
        return kernel


@contextmanager
def _answering() -> Iterator[None]:
    from triton.runtime._async_compile import active_mode

    token = active_mode.set(_Mode())
    try:
        yield
    finally:
        active_mode.reset(token)
