"""Serve an application until a signal: bind, say so, drain, end with a reason."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from ingle.config import ServerConfig
from ingle.errors import ConfigError
from ingle.server.state import ServerState

_GRACE_S = 5.0  # for ended requests to send their last bytes


class Server(uvicorn.Server):
    """First signal: no new work, running requests may finish for a while. Second: exit at once."""

    def __init__(self, app: Starlette, config: ServerConfig, on_ready: Callable[[str], None]) -> None:
        self.socket = bind(config.host, config.port)
        self._limit_s = config.shutdown_timeout_s
        self._on_ready = on_ready
        self._state: ServerState = app.state.ingle
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=int(self._limit_s + _GRACE_S) + 1,
            )
        )

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run_until_signal(self) -> None:
        asyncio.run(self.serve([self.socket]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.draining = True
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._state.end_all)
        await super().shutdown(sockets)
        timer.cancel()
        self._state.media.close()
        self._state.responses.close()
        await self._state.pool.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on to the default handlers afterwards: a drained server exits with 0.
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes any free one.

    Raises:
        ConfigError: the address is in use or not ours.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def serve(app: Starlette, config: ServerConfig, on_ready: Callable[[str], None]) -> None:
    """Blocks until SIGINT or SIGTERM and a drained shutdown. `on_ready` gets the base URL.

    Raises:
        ConfigError: the address cannot be bound.
    """
    Server(app, config, on_ready).run_until_signal()
