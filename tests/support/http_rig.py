"""A server of Uvicorn in a thread, on a free port of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def running(server: uvicorn.Server) -> Iterator[int]:
    """Run a server until the end of the block; gives its port. Fails if it does not end then."""
    server.config.port = 0
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        # Its end waits for open connections, on a busy machine for long.
        thread.join(60)
    assert not thread.is_alive()
