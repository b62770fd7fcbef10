"""Keeps the verifier's output, byte for byte, before it is judged.

After a run the file is that run's evidence or is not there: what an earlier boot left is removed first, so that it is not taken for this
boot's. It is complete or absent (written under another name, then renamed). Only its owner can read it, since claims identify the machine.
Rejected: keeping it only after a pass; a refusal is what an operator will look into.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from guest_service.boot_gate.errors import UnreadableError

MODE = 0o600


class EvidenceFile:
    """The file at `path`, or nowhere for None. What it cannot do is a refusal: UnreadableError, naming the file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def path(self) -> Path | None:
        """Where the evidence is kept."""
        return self._path

    def forget(self) -> None:
        """Remove what an earlier run kept."""
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                raise _fault(self._path, error) from error

    def keep(self, data: bytes) -> None:
        """Write `data`, durably."""
        if self._path is None:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            _write(beside, data)
            beside.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise _fault(self._path, error) from error


def _write(path: Path, data: bytes) -> None:
    # EXCL and NOFOLLOW: never through a link of another user, never into a file that another process has open.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fault(path: Path, error: OSError) -> UnreadableError:
    return UnreadableError(f"evidence_file {path}: cannot be kept: {error.strerror or error}")
