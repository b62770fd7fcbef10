"""A Unix socket's path, held by one server at a time and never open wider than its mode.

gRPC removes whatever socket lies at a path before it binds, and with it a live server's socket. So a path is claimed first, through a lock
on a file beside it: the kernel drops the lock when its holder dies, however it dies, and a stale socket needs no clean-up by hand. A socket
of somebody who knows nothing of the lock is tried with connect(2); one that answers is left alone, and so is anything that is no socket.

A socket is bound in a folder of mode 0700 beside its path, gets its mode there, and is linked to the path when it is ready: whoever may
write in the path's folder has nothing to swap while it is made, and link(2) replaces nothing. Linux goes on showing where it was bound
(`ss -xl`: PATH.new/s). Rejected: the umask (it is the whole process's, and files of other threads got it), chmod at the path (it follows a
link that somebody puts there), fchmod before bind(2) alone (the umask still takes from it, and gRPC binds by itself).

Rejected for the claim: connect(2) alone (between bind and listen a starting server looks dead); a lock on the folder (whoever may read the
folder could hold it); a lock on the socket itself (it cannot be opened).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

from guest_transport.addresses import UNIX_PATH_BYTES
from guest_transport.errors import ListenError

# A holder that ends removes its lock file; whoever opened it just before tries again. Each try needs another holder to end meanwhile.
_CLAIM_TRIES = 10
# What a socket is called while it is bound: PATH.new/s.
_FOLDER = ".new"
_NAME = "s"


class SocketFile:
    """The claim on one socket path; made by claim(), ended by release()."""

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._bound: tuple[int, int] | None = None

    @classmethod
    def claim(cls, path: str) -> SocketFile:
        """Claim `path`; raises ListenError when a live server holds it, it is no socket, or its folder cannot be written."""
        fd = _lock(path)
        try:
            _make_way(path)
        except BaseException:
            _unlock(path, fd)
            raise
        return cls(path, fd)

    @contextlib.asynccontextmanager
    async def binding(self, mode: int, group: int | None = None) -> AsyncIterator[str]:
        """Gives the path to bind the socket at; afterwards it is at `path`, with exactly `mode`, and `group`. Raises ListenError."""
        try:
            folder = await asyncio.to_thread(_BindingFolder, self.path)
        except OSError as error:
            raise ListenError(f"unix:{self.path}: cannot listen: {self.path}{_FOLDER}: {error.strerror}") from error
        try:
            yield folder.place
            self._bound = await asyncio.to_thread(folder.hand_over, mode, group)
        except _GroupRefusedError as error:
            raise ListenError(f"unix:{self.path}: cannot listen: {error}") from error
        except FileExistsError as error:
            raise ListenError(f"unix:{self.path}: cannot listen: another program took it just now; try again") from error
        except OSError as error:
            raise ListenError(f"unix:{self.path}: cannot listen: {error.strerror or error}") from error
        finally:
            await asyncio.to_thread(folder.remove)

    def release(self) -> None:
        """Remove the socket, if it is still the one that was bound, and let go of the path."""
        with contextlib.suppress(OSError):
            now = os.lstat(self.path)
            if (now.st_dev, now.st_ino) == self._bound:
                Path(self.path).unlink()
        _unlock(self.path, self._lock_fd)


def bound_at(path: str) -> str | None:
    """What Linux shows as the path of a listener at `path`; None when that is too long for a socket's name."""
    place = f"{path}{_FOLDER}/{_NAME}"
    return place if len(os.fsencode(place)) <= UNIX_PATH_BYTES else None


class _GroupRefusedError(Exception):
    """Says which group the socket cannot be given to, and what helps."""


class _BindingFolder:
    """The folder that a socket is made in; only who holds the claim makes one. `place` is where to bind."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = f"{path}{_FOLDER}"
        # One that is left of a killed server is as good as a new one.
        with contextlib.suppress(FileExistsError):
            Path(self._folder).mkdir(0o700)
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        there = os.fstat(self._fd)
        if there.st_uid != os.geteuid() or there.st_mode & 0o077:
            os.close(self._fd)
            raise PermissionError(errno.EACCES, "it is not this user's alone; remove it")
        with contextlib.suppress(OSError):
            os.unlink(_NAME, dir_fd=self._fd)
        self.place = bound_at(path) or f"/proc/self/fd/{self._fd}/{_NAME}"

    def hand_over(self, mode: int, group: int | None) -> tuple[int, int]:
        """Give what was bound its group and mode, then its path; its device and inode. Raises OSError."""
        # By the folder's descriptor: its own name may lead elsewhere by now.
        if group is not None:
            try:
                os.chown(_NAME, -1, group, dir_fd=self._fd, follow_symlinks=False)
            except PermissionError as error:
                raise _GroupRefusedError(
                    f"it may not be given to the group {group}; make the server's user a member of it"
                ) from error
        os.chmod(_NAME, mode, dir_fd=self._fd)
        made = os.stat(_NAME, dir_fd=self._fd, follow_symlinks=False)
        os.link(_NAME, self._path, src_dir_fd=self._fd, follow_symlinks=False)
        return made.st_dev, made.st_ino

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError):
            os.unlink(_NAME, dir_fd=self._fd)
        os.close(self._fd)
        with contextlib.suppress(OSError):
            Path(self._folder).rmdir()


def _lock(path: str) -> int:
    for _ in range(_CLAIM_TRIES):
        try:
            fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise ListenError(f"unix:{path}: cannot listen: {_why_not_lockable(path, error)}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ListenError(
                f"unix:{path}: cannot listen: another server holds it; stop that one or choose another path"
            ) from error
        if _is_at(fd, f"{path}.lock"):
            return fd
        os.close(fd)
    raise ListenError(f"unix:{path}: cannot listen: {path}.lock keeps being replaced; start one server at a time")


def _why_not_lockable(path: str, error: OSError) -> str:
    """Why the lock beside `path` cannot be opened, and what to do where that is plain."""
    folder = Path(path).parent
    if error.errno == errno.ENOENT:
        return f"there is no folder {folder}; make it, or choose another path"
    if error.errno in {errno.EACCES, errno.EROFS}:
        return f"{error.strerror}: {path}.lock; start as a user who may write in {folder}, or choose another path"
    return f"{error.strerror}: {path}.lock"


def _is_at(fd: int, path: str) -> bool:
    """Whether the open file is still the one at `path`: its holder may have removed it between our open and our lock."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _unlock(path: str, fd: int) -> None:
    # Removed before the lock goes, never after: the name may be the next holder's by then.
    with contextlib.suppress(OSError):
        Path(f"{path}.lock").unlink()
    os.close(fd)


def _make_way(path: str) -> None:
    """Remove a socket that nobody has open any more; raises ListenError for anything else at the path."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"unix:{path}: cannot listen: {error.strerror}") from error
    if not stat.S_ISSOCK(kind):
        raise ListenError(f"unix:{path}: cannot listen: what lies there is no socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        refusal = probe.connect_ex(path)
    # ECONNREFUSED: bound once, and nobody has it open any more. Everything else is somebody's: 0 and EAGAIN (its queue is full) a live
    # server, EPROTOTYPE a socket of another type, EACCES one that is not ours to judge.
    if refusal not in {errno.ECONNREFUSED, errno.ENOENT}:
        raise ListenError(f"unix:{path}: cannot listen: a socket of another program is there; stop it or choose another path")
    with contextlib.suppress(OSError):
        Path(path).unlink()
