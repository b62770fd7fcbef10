"""Unix sockets of our own: connecting and listening without blocking the loop.

Rejected: asyncio's sock_connect for AF_UNIX. When the other side's queue is full, connect(2) says EAGAIN and nothing is under way; asyncio
takes the socket for connected as soon as it polls as writable.
"""

from __future__ import annotations

import asyncio
import os
import socket

# A queue is full while its owner is busy for a moment; the caller's own bound ends the tries.
_QUEUE_FULL_PAUSE_SECONDS = 0.02
# Connections that may wait to be accepted: a server's clients coming back all at once after its restart.
LISTEN_BACKLOG = 128


async def connect(path: str, own_name: str = "") -> socket.socket:
    """A non-blocking socket connected to `path`, bound to `own_name` when given; raises OSError. The caller bounds the wait."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if own_name:
            connection.bind(own_name)
        while True:
            try:
                connection.connect(path)
            except BlockingIOError:
                await asyncio.sleep(_QUEUE_FULL_PAUSE_SECONDS)
            else:
                return connection
    except BaseException:
        connection.close()
        raise


def listen(path: str) -> socket.socket:
    """A non-blocking socket that listens at `path`; raises OSError. Its user alone may connect until it gets another mode."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Before bind(2), which makes the file with the socket's own mode (unix(7)).
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(path)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
