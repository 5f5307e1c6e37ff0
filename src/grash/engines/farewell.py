"""A sentence and an exit code when a rank is told to end (SIGTERM), even while it waits for others.

torchrun ends all ranks as soon as one has died. The main thread may then stand in a call that never comes back and
runs no signal handler, so a thread of its own listens to the pipe into which the interpreter writes signals.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def farewell(rank: int, size: int, exit_code: int) -> Iterator[None]:
    """Inside, SIGTERM ends this process with a sentence on stderr and that code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here, there = socket.socketpair()
    there.setblocking(False)
    sentence = (
        f"error: Rank {rank} of {size} was told to end, as all are when one of them or the launcher has ended. "
        f"The same command goes on from its last checkpoint, if there is one.\n"
    )
    threading.Thread(target=_listen, args=(here, sentence.encode(), exit_code), daemon=True).start()
    before_fd = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler nothing is written to the pipe
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(before_fd)
        there.close()


def _listen(pipe: socket.socket, sentence: bytes, exit_code: int) -> None:
    with pipe:
        while numbers := pipe.recv(64):
            if signal.SIGTERM in numbers:
                os.write(2, sentence)
                os._exit(exit_code)
