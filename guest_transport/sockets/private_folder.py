"""A folder for sockets that only this process uses, and the removal of those whose process was killed.

Each folder is locked by its process as long as it is used: the kernel drops the lock when its holder dies, however it dies. So the next
server removes what a kill -9 left behind, and never what somebody uses. It removes nothing but sockets, and a folder only when it is
empty then: a folder of that name that is somebody else's stays as it is. Rejected: abstract sockets, which leave nothing (whoever is on the
machine could connect to them); the process's id in the name (it is another one's in another container, and comes again).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import tempfile
from pathlib import Path

from guest_transport.addresses import UNIX_PATH_BYTES
from guest_transport.errors import ListenError

log = logging.getLogger(__name__)

PREFIX = "guestscope-s-"
# Between being made and being locked a folder can be taken for an abandoned one. Each try needs a server that starts in just that moment.
_TRIES = 10
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolder:
    """A new folder (mode 0700) in the system's place for temporary files, for sockets that only this process uses."""

    def __init__(self) -> None:
        try:
            self._path, lock_fd = _made()
        except OSError as error:
            # Without a file name nothing could be written anywhere, and the error lists where Python tried.
            where = f"{error.filename}: " if error.filename else ""
            raise ListenError(
                f"{where}cannot make a private folder for sockets: {error.strerror}; set TMPDIR to a folder that can be written to"
            ) from error
        self._lock_fds = [lock_fd]

    def file(self, name: str) -> str:
        """The path of `name` in it; raises ListenError when it is too long for a socket."""
        path = str(self._path / name)
        if len(path.encode()) > UNIX_PATH_BYTES:
            raise ListenError(f"{path}: too long for a socket; set TMPDIR to a shorter path")
        return path

    def close(self) -> None:
        """Remove it with its sockets; waits for the file system. May be called again, also while the first call is at it in a thread."""
        # Taken in one step: a descriptor that is closed twice is somebody else's by then.
        with contextlib.suppress(IndexError):
            lock_fd = self._lock_fds.pop()
            _remove(self._path, lock_fd)
            os.close(lock_fd)


def remove_abandoned_folders() -> None:
    """Remove this user's folders whose processes are gone; what cannot be removed stays. Blocks."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for folder in found:
        with contextlib.suppress(OSError):
            _remove_if_abandoned(folder)


def _made() -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock; raises OSError."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            fd = os.open(path, _OPEN_FOLDER)
        except FileNotFoundError:
            continue
        if _locked(fd) is not False and _is_at(fd, path):
            return path, fd
        os.close(fd)
    raise OSError(errno.EBUSY, "it is taken away again and again")


def _locked(fd: int) -> bool | None:
    """Take the lock: whether it was free; None where the file system has no locks, and nothing is removed either."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _remove_if_abandoned(folder: Path) -> None:
    fd = os.open(folder, _OPEN_FOLDER)
    try:
        if os.fstat(fd).st_uid == os.geteuid() and _locked(fd) and _is_at(fd, folder):
            _remove(folder, fd)
            log.debug("%s: removed; its process is gone", folder)
    finally:
        os.close(fd)


def _remove(folder: Path, fd: int) -> None:
    """Remove its sockets, and then the folder if nothing else is in it; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(fd):
            if stat.S_ISSOCK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
        folder.rmdir()
