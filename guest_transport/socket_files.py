"""A Unix socket's path, held by one server at a time and never open wider than its mode.

gRPC removes whatever socket lies at a path before it binds, and with it a live server's door. So a path is claimed first, through a lock
on a file beside it: the kernel drops the lock when its holder dies, however it dies, and a stale socket needs no clean-up by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from guest_transport.errors import ListenError


class SocketFile:
    """The claim on one socket path; made by claim(), ended by release()."""

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def claim(cls, path: str) -> SocketFile:
        """Claim `path`; raises ListenError when another live server holds it or its folder cannot be written."""
        try:
            fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ListenError(f"unix:{path}: cannot listen: {error.strerror}: {error.filename}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ListenError(f"unix:{path}: cannot listen: another server holds it") from error
        return cls(path, fd)

    @contextlib.contextmanager
    def binding(self, mode: int) -> Iterator[None]:
        """Within it the socket is bound; it never has more than `mode`, and has exactly `mode` afterwards."""
        before = os.umask(0o777 & ~mode)
        try:
            yield
        finally:
            os.umask(before)
        Path(self.path).chmod(mode)

    def release(self) -> None:
        """Remove the socket and let go of the path."""
        Path(self.path).unlink(missing_ok=True)
        Path(f"{self.path}.lock").unlink(missing_ok=True)
        os.close(self._lock_fd)
