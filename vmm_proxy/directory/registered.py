"""Guests that a VMM registered through DirectoryService: kept in one JSON file, and there again after a restart.

A change is answered when it is on the disk (temporary file, fsync, rename, fsync of the folder), and undone when it cannot be
put there. A file that does not read back stops the start: going on would forget guests and then overwrite what is left of them.
Rejected: a database (a host has a few hundred guests, and an operator can read this).
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import Directory, DirectoryError, GuestEntry
from vmm_proxy.directory.entry import GuestSettings, guest_entry

log = logging.getLogger(__name__)

# What stands in GuestEntry.source.
SOURCE = "the registered guests"
# More than VMs on any host: a caller in a loop must not fill the disk.
REGISTERED_LIMIT = 10_000
# The end of the name of what is being written.
_TEMPORARY = ".new"


class NotKeptError(Exception):
    """A change could not be written and was undone."""


class ElsewhereError(DirectoryError):
    """The guest's entry comes from a file or a flag and is changed there."""


class TooManyError(DirectoryError):
    """There are REGISTERED_LIMIT guests already."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    guests: list[GuestSettings]


class RegisteredGuests:
    """The registered entries of `directory`; changes are made one after the other."""

    def __init__(self, file: Path, directory: Directory, *, allow_plaintext: bool) -> None:
        self._file = file
        self._directory = directory
        self._allow_plaintext = allow_plaintext
        self._lock = asyncio.Lock()
        self._entries: dict[str, GuestEntry] = {}

    def load(self) -> None:
        """Add what the file holds to the directory; raises SettingsError for a file that cannot be trusted. Blocks: call it at start."""
        try:
            kind = self._file.stat().st_mode
            # A folder tells by itself what it is; a pipe would be waited for, and a device may have no end.
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise SettingsError(f"{self._file}: is no regular file")
            data = self._file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise SettingsError(f"{self._file}: cannot be read: {error.strerror}") from error
        try:
            guests = msgspec.json.decode(data, type=_File).guests
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self._file}: damaged, restore it or move it away: {error}") from error
        for number, settings in enumerate(guests):
            where = f"{self._file}: guests[{number}]."
            if settings.tls is not None:
                # DirectoryService has no such thing, and the next change would write the guest without it: in the clear from then on.
                raise SettingsError(f"{where}tls: a registered guest has none; give this one a file in directory.dir")
            entry = guest_entry(settings, where, source=SOURCE, allow_plaintext=self._allow_plaintext)
            try:
                self._directory.add(entry)
            except DirectoryError as error:
                raise SettingsError(f"{self._file}: {error}") from error
            self._entries[entry.id] = entry

    async def remove_leftovers(self) -> None:
        """Remove what a proxy that was killed while it wrote has left beside the file; call it once this proxy listens.

        Before, a second proxy that is started by mistake, and will be refused its address, would take away what the first is writing.
        """
        async with self._lock:
            await asyncio.to_thread(_remove_leftovers, self._file)

    async def register(self, entry: GuestEntry) -> None:
        """Add a guest; raises DirectoryError or NotKeptError."""
        async with self._lock:
            if len(self._entries) >= REGISTERED_LIMIT:
                raise TooManyError(f"guest {entry.id}: {REGISTERED_LIMIT} guests are registered already; deregister some first")
            self._directory.add(entry)
            self._entries[entry.id] = entry
            await self._keep_or(lambda: self._forget(entry.id))

    async def update(self, entry: GuestEntry) -> None:
        """Replace a registered guest's entry; raises DirectoryError or NotKeptError."""
        async with self._lock:
            before = self._own(entry.id)
            self._directory.replace(entry)
            self._entries[entry.id] = entry
            await self._keep_or(lambda: self._put_back(before))

    async def deregister(self, guest_id: str) -> None:
        """Remove a registered guest; raises DirectoryError or NotKeptError."""
        async with self._lock:
            before = self._own(guest_id)
            self._forget(guest_id)
            await self._keep_or(lambda: self._put_back(before))

    def _own(self, guest_id: str) -> GuestEntry:
        entry = self._entries.get(guest_id)
        if entry is None:
            self._directory.known(guest_id)
            raise ElsewhereError(f"guest {guest_id}: comes from the proxy's configuration, change it there")
        return entry

    def _forget(self, guest_id: str) -> None:
        self._directory.remove(guest_id)
        del self._entries[guest_id]

    def _put_back(self, entry: GuestEntry) -> None:
        if entry.id in self._entries:
            self._directory.replace(entry)
        else:
            self._directory.add(entry)
        self._entries[entry.id] = entry

    async def _keep_or(self, undo: Callable[[], None]) -> None:
        guests = [_settings(entry) for _, entry in sorted(self._entries.items())]
        data = msgspec.json.format(msgspec.json.encode(_File(guests)), indent=1)
        # Once it is being written, a caller who leaves does not stop it half-way.
        writing = asyncio.ensure_future(asyncio.to_thread(_write, self._file, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if writing.exception() is not None:
                undo()
            raise
        except OSError as error:
            undo()
            raise NotKeptError(f"the change was not kept: {error.strerror or 'the file could not be written'}") from error


def _settings(entry: GuestEntry) -> GuestSettings:
    return GuestSettings(
        id=entry.id,
        address=entry.written_address,
        labels=dict(entry.labels),
        state="running" if entry.running else "stopped",
        instance_id=entry.instance_id.hex(),
        gpus=entry.gpus,
    )


def _remove_leftovers(file: Path) -> None:
    for leftover in file.parent.glob(f".{glob.escape(file.name)}.*{_TEMPORARY}"):
        try:
            leftover.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: left behind by a proxy that was killed, and cannot be removed: %s", leftover, error.strerror)


def _write(file: Path, data: bytes) -> None:
    """Put `data` in place of the file's content, whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=_TEMPORARY)
    try:
        with open(fd, "wb") as out:  # noqa: PTH123  # a descriptor, not a path
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
