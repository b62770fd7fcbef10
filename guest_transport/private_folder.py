"""A folder that nobody else can look into, for the sockets between a relay and gRPC, and the end of those that a killed process left.

A folder is held by a lock on itself, which the kernel lets go of with the process, however it ends; a server's start removes what nobody
holds (systemd-tmpfiles leaves locked folders alone, too). It refuses to touch a folder of another user, and one with folders in it.
Rejected: the process's id in the name (another process has it by then, or another container counts its own); connecting to the socket
to see who answers (a relay would dial the guest for it); a fixed folder under /run (a client run by a person has none, and two servers
would share it).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from guest_transport.addresses import UNIX_PATH_BYTES
from guest_transport.errors import ListenError

_PREFIX = "guestscope-run-"
# Another process's sweep can take a folder in the moment before it is locked; more than once in a row is no chance any more.
_TRIES = 8
# One look at the place for temporary files: a thousand guests of a proxy that was killed ten times.
_SWEPT_AT_ONCE = 10_000


class PrivateFolder:
    """A new folder (mode 0700) in the system's place for temporary files, for sockets that only this process uses."""

    def __init__(self) -> None:
        try:
            self._path, self._lock_fd = _new_locked()
        except OSError as error:
            raise ListenError(f"{tempfile.gettempdir()}: cannot make a private folder for sockets: {error.strerror}") from error

    def file(self, name: str) -> str:
        """The path of `name` in it; raises ListenError when it is too long for a socket."""
        path = str(self._path / name)
        if len(path.encode()) > UNIX_PATH_BYTES:
            raise ListenError(f"{path}: too long for a socket; set TMPDIR to a shorter path")
        return path

    def close(self) -> None:
        """Remove it with everything in it; waits for the file system."""
        _remove(self._path, self._lock_fd)
        os.close(self._lock_fd)


def sweep() -> int:
    """Remove this user's folders that no process holds any more; how many. Waits for the file system."""
    swept = 0
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        names = (entry.name for entry in found if entry.name.startswith(_PREFIX))
        for name in [name for name, _ in zip(names, range(_SWEPT_AT_ONCE), strict=False)]:
            swept += _sweep_one(Path(tempfile.gettempdir()) / name)
    return swept


def _sweep_one(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != stat.S_IRWXU or not _lock(fd):
            return False
        return _remove(path, fd)
    finally:
        os.close(fd)


def _new_locked() -> tuple[Path, int]:
    """A new folder and the open descriptor that holds it."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        # A sweep that came in between has it locked, or has removed it already.
        if _lock(fd) and os.fstat(fd).st_nlink:
            return path, fd
        os.close(fd)
    raise OSError(None, "new folders keep being removed")


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path, fd: int) -> bool:
    """Remove what lies in the open folder `fd`, then the folder at `path`; whether it is gone."""
    try:
        for name in os.listdir(fd):
            os.unlink(name, dir_fd=fd)
        path.rmdir()
    except OSError:
        return False
    return True
