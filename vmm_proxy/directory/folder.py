"""Guests from a folder with one TOML file each; the folder is watched, and each file stands for itself.

A file that is wrong, or names a guest or an address that is taken, is refused alone, with its reason in the log and in
`refused`; the last good version of its guest stays. Reading and parsing happen in a thread, only changed files are parsed.
Rejected: one big file (one misplaced quote would lose every guest), and refusing to start over a bad file (a host's other
guests would pay for it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path

from watchfiles import awatch

from guest_transport.addresses import Address
from guest_transport.errors import SettingsError
from guest_transport.process.repeated_lines import about
from guest_transport.settings.read import parse_settings, read_file
from vmm_proxy.directory.directory import Directory, DirectoryError, GuestEntry
from vmm_proxy.directory.entry import GuestSettings, guest_entry
from vmm_proxy.directory.sources import SourceState

log = logging.getLogger(__name__)

# One guest with 32 labels and 64 cards takes 12 KB.
FILE_LIMIT_BYTES = 64 * 1024
# More files than VMs on any host; the rest is a wrong folder.
FILES_LIMIT = 10_000
# Some file systems report no changes, and a folder can be replaced as a whole: then this is how soon it is noticed.
RESCAN_SECONDS = 30.0

# Changes that come together (a tool writing a hundred files) are read once; a person does not notice a tenth of a second.
DEBOUNCE_MILLISECONDS = 100

# What a file holds: its guest, or why it is refused.
Found = GuestEntry | SettingsError


class FolderReader:
    """Reads a folder's `*.toml` files; parses a file again only when its bytes changed. Used by one thread at a time."""

    def __init__(self, folder: Path, *, allow_plaintext: bool) -> None:
        self._folder = folder
        self._allow_plaintext = allow_plaintext
        self._parsed: dict[str, tuple[bytes, Found]] = {}

    def read(self) -> Mapping[str, Found] | OSError:
        """What each file holds, by name; OSError when the folder cannot be read."""
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
        except OSError as error:
            return error
        found = {path.name: self._read_file(path) for path in paths[:FILES_LIMIT]}
        for path in paths[FILES_LIMIT:]:
            found[path.name] = SettingsError(f"{path}: one file too many; {FILES_LIMIT} are read")
        self._parsed = {name: parsed for name, parsed in self._parsed.items() if name in found}
        return found

    def _read_file(self, path: Path) -> Found:
        try:
            data = read_file(path)
        except SettingsError as error:
            return error
        if len(data) > FILE_LIMIT_BYTES:
            return SettingsError(f"{path}: larger than {FILE_LIMIT_BYTES} bytes")
        known = self._parsed.get(path.name)
        if known is None or known[0] != data:
            known = self._parsed[path.name] = (data, self._parse(path, data))
        return known[1]

    def _parse(self, path: Path, data: bytes) -> Found:
        try:
            settings = parse_settings(data, str(path), GuestSettings)
            return guest_entry(settings, f"{path}: ", source=str(path), allow_plaintext=self._allow_plaintext)
        except SettingsError as error:
            return error


class GuestFolder:
    """Keeps the directory's entries equal to what the files hold."""

    def __init__(self, folder: Path, directory: Directory, *, allow_plaintext: bool) -> None:
        self._folder = folder
        self._directory = directory
        self._reader = FolderReader(folder, allow_plaintext=allow_plaintext)
        # The entry that each file has in the directory.
        self._entries: dict[str, GuestEntry] = {}
        # Why a file is refused, by its name; by "" why the folder cannot be read.
        self.refused: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> SourceState:
        """Whether the folder could be read, and how many files are refused."""
        return SourceState("" not in self.refused, len(self.refused.keys() - {""}))

    async def start(self) -> None:
        """Read the folder once, then watch it."""
        await self._rescan()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Watch no more; the entries stay."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def apply(self, found: Mapping[str, Found]) -> None:
        """Make the directory's entries those of `found`; what is refused keeps its last good version, untouched."""
        refused = {name: str(what) for name, what in found.items() if isinstance(what, SettingsError)}
        for name in [name for name in self._entries if name not in found]:
            self._directory.remove(self._entries.pop(name).id)
        changed = {name: what for name, what in found.items() if isinstance(what, GuestEntry) and self._entries.get(name) != what}
        refused |= self._take_out_refused(changed)
        # Whoever leaves an id or an address does so first: two files may have swapped theirs.
        for name, entry in changed.items():
            old = self._entries.get(name)
            if old and (old.id, old.address) != (entry.id, entry.address):
                self._directory.remove(self._entries.pop(name).id)
        for name, entry in sorted(changed.items(), key=lambda item: item[1].running):
            if name in self._entries:
                self._directory.replace(entry)
            else:
                self._directory.add(entry)
            self._entries[name] = entry
        self._say(refused)

    def _take_out_refused(self, changed: dict[str, GuestEntry]) -> dict[str, str]:
        """Take out of `changed` what cannot be put in, were all of it to replace the last versions at once; the reasons.

        What is refused keeps its id and address, which may refuse another one. Only who wants one of the two is judged again: in a folder
        where each of ten thousand guests wants the address of the next, judging all of them each time holds the proxy for minutes.
        """
        leaving = {self._entries[name].id for name in changed if name in self._entries}
        wanting: defaultdict[str | Address, list[str]] = defaultdict(list)
        for name, entry in changed.items():
            wanting[entry.id].append(name)
            wanting[entry.address].append(name)
        together = Directory()
        reasons: dict[str, str] = {}
        to_judge = deque(changed)
        while to_judge:
            name = to_judge.popleft()
            if name in reasons:
                continue
            try:
                self._directory.check(changed[name], leaving)
                if together.get(changed[name].id) is not changed[name]:
                    together.add(changed[name])
            except DirectoryError as error:
                reasons[name] = f"{self._folder / name}: {error}"
                if stays := self._entries.get(name):
                    leaving.discard(stays.id)
                    to_judge.extend([*wanting[stays.id], *wanting[stays.address]])
        for name in reasons:
            del changed[name]
        return reasons

    def _say(self, refused: dict[str, str]) -> None:
        for name, reason in refused.items():
            if self.refused.get(name) != reason:
                kept = "; its last good version stays" if name in self._entries else ""
                log.warning("%s%s", reason, kept, extra=about(name))
        for name in self.refused.keys() - refused.keys():
            log.info("%s: refused no more", self._folder / name)
        self.refused = refused

    def scan(self) -> None:
        """Read the folder and take over what it holds. Blocks: for a command that serves nobody."""
        self._take(self._reader.read())

    async def _rescan(self) -> None:
        self._take(await asyncio.to_thread(self._reader.read))

    def _take(self, found: Mapping[str, Found] | OSError) -> None:
        if isinstance(found, OSError):
            # The folder is being replaced, or is gone: its guests are not.
            self._say(self.refused | {"": f"{self._folder}: cannot be read: {found.strerror}"})
        else:
            self.apply(found)

    async def _watch(self) -> None:
        while True:
            try:
                await self._watch_once()
            except (OSError, RuntimeError) as error:
                # What watchfiles raises when the folder is not there, or the host is out of inotify watches.
                log.warning("%s: cannot be watched, reading it every %.0f s: %s", self._folder, RESCAN_SECONDS, error)
                await asyncio.sleep(RESCAN_SECONDS)
            await self._rescan()

    async def _watch_once(self) -> None:
        """Rescan at each change; returns after RESCAN_SECONDS without one, because the watch may be on a folder that was replaced."""
        watch = awatch(
            self._folder,
            watch_filter=None,
            debounce=DEBOUNCE_MILLISECONDS,
            rust_timeout=int(RESCAN_SECONDS * 1000),
            yield_on_timeout=True,
            recursive=False,
        )
        async with contextlib.aclosing(watch):
            async for changes in watch:
                if not changes:
                    return
                await self._rescan()
