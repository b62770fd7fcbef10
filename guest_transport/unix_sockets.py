"""Unix sockets of our own: connecting without blocking the loop, and a folder that nobody else can look into.

Rejected: asyncio's sock_connect for AF_UNIX. When the other side's queue is full, connect(2) says EAGAIN and nothing is under way; asyncio
takes the socket for connected as soon as it polls as writable.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path

from guest_transport.addresses import UNIX_PATH_BYTES
from guest_transport.errors import ListenError

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
    """A non-blocking socket that listens at `path`; raises OSError. Who may connect is up to the folder and the umask."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(path)
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class PrivateFolder:
    """A new folder (mode 0700) in the system's place for temporary files, for sockets that only this process uses."""

    def __init__(self) -> None:
        try:
            self._path = Path(tempfile.mkdtemp(prefix="guestscope-"))
        except OSError as error:
            # Without a file name nothing could be written anywhere, and the error lists where Python tried.
            where = f"{error.filename}: " if error.filename else ""
            raise ListenError(
                f"{where}cannot make a private folder for sockets: {error.strerror}; set TMPDIR to a folder that can be written to"
            ) from error

    def file(self, name: str) -> str:
        """The path of `name` in it; raises ListenError when it is too long for a socket."""
        path = str(self._path / name)
        if len(path.encode()) > UNIX_PATH_BYTES:
            raise ListenError(f"{path}: too long for a socket; set TMPDIR to a shorter path")
        return path

    def close(self) -> None:
        """Remove it with everything in it; waits for the file system."""
        shutil.rmtree(self._path, ignore_errors=True)
