"""Runs the application on 127.0.0.1 with uvicorn, and closes connections that send their request too slowly.

It listens before the model is loaded, which happens in a thread, and imports nothing heavy itself.
"""

from __future__ import annotations

import gc
import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from grash.errors import InputError
from grash.serve.guard import Guard, Metrics
from grash.serve.loading import Loading

if TYPE_CHECKING:
    from grash.serve.service import Service

_log = logging.getLogger(__name__)
HEAD_SECONDS = 10.0  # a connection must send the head of a request within this time
MAX_CONNECTIONS = 1024


class TimedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on the time that the head of a request may take; uvicorn has none."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit: Any = self.loop.call_later(HEAD_SECONDS, self._close_if_waiting)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_waiting():
            if self._limit is None:
                self._limit = self.loop.call_later(HEAD_SECONDS, self._close_if_waiting)
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_waiting(self) -> None:
        self._limit = None
        if self._is_waiting() and not self.transport.is_closing():
            self.transport.close()

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class ModelServer:
    """A server of a model on 127.0.0.1; `run` returns when it is stopped."""

    def __init__(self, load: Callable[[], Service], port: int, *, token: str | None = None) -> None:
        """load: returns the model, in a thread. Raises InputError if the port is in use; 0 chooses a free one."""
        self._load, self._socket = load, _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._loading, self._metrics = Loading(lambda: self._server.should_exit), Metrics()
        self._failure: BaseException | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(self._loading, self._metrics, token), http=TimedProtocol, ws="none", lifespan="off",
                log_level="error", access_log=False, limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=30,
                server_header=False, timeout_graceful_shutdown=5, log_config=None,
            )
        )  # fmt: skip

    def run(self) -> None:
        """Serve until `stop` or Ctrl-C; raises what loading the model raised."""
        threading.Thread(target=self._start, name="load", daemon=True).start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            gc.unfreeze()
        if self._failure is not None:
            raise self._failure

    def _start(self) -> None:
        try:
            service = self._load()
            from grash.serve.application import make_app

            self._loading.app = make_app(service, self._metrics)
        except BaseException as error:
            self._failure = error
            self.stop()
            return
        try:
            service.warm_up()
        except Exception:  # after Ctrl-C, no thread can be started anymore
            if not self._server.should_exit:
                _log.exception("The model is served, but its indexes could not be built.")
        # 340,000 objects of libraries and indexes stay as they are. Every full garbage collection looked at all of
        # them: 130 ms without an answer, once a second under load.
        if not self._server.should_exit:
            gc.freeze()

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port} is not possible: give a number from 0 (any free port) to 65535.")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"Port {port} cannot be used: {(error.strerror or str(error)).lower()}. Give another with --port, or 0 for "
            f"any free one."
        ) from error
    listening.listen(512)
    return listening
