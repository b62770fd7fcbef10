"""The audit log: one JSON object a line about every call that changes something, and about every guest that is not who it must be.

A line is on the disk (O_APPEND, fsync) before the call that it announces is made: a log that cannot be written refuses the call.
It fails closed, because a shutdown that nobody can account for is worse than one that did not happen. Without a file the lines go
to the proxy's log, whose keeping is the service manager's business.

    AuditError    the line could not be written

Rejected: the logging module's file handler (it writes to stderr about a full disk and goes on), and one line per call, written
when its outcome is known (a proxy that dies in between leaves no trace).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from guest_transport.errors import SettingsError
from guest_transport.peers import lasting_name
from guest_transport.process.repeated_lines import EVERY_ONE, about
from vmm_proxy.errors import plain

log = logging.getLogger(__name__)

# The proxy's group may read it, nobody else.
FILE_MODE = 0o640
# fsync takes milliseconds; a disk that needs longer than this does not keep the line, and the caller has a deadline.
WRITE_SECONDS = 5.0
# What a caller chose (a request id, the entry of a directory) is cut to this, so that one call cannot fill the disk.
TEXT_LIMIT_BYTES = 2048

Event = Mapping[str, object]


class AuditError(Exception):
    """The line could not be written; the message says why."""


class Audit:
    """The log in `file`; open() it before the first line. `wall_clock` gives epoch seconds."""

    def __init__(self, file: Path | None, wall_clock: Callable[[], float]) -> None:
        self._file = file
        self._wall_clock = wall_clock
        self._fd: int | None = None
        # The last line is there in part only: the next one starts on a line of its own.
        self._torn = False
        # One thread keeps the order of the lines, and everything but the hand-over happens in it.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def is_a_file(self) -> bool:
        """Whether lines go to a file of their own, and not to the proxy's log."""
        return self._file is not None

    def open(self) -> None:
        """Open the file, or open it anew after it was moved away; raises SettingsError and then keeps the one before. Blocks."""
        if self._file is not None:
            self._writer.submit(self._reopen, self._file).result()

    async def write(self, event: Event) -> None:
        """Add a line, safely on the disk on return; raises AuditError."""
        line = self._line(event)
        if self._file is None:
            log.warning("audit: %s", line, extra=_told_with(event))
            return
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await asyncio.get_running_loop().run_in_executor(self._writer, self._append, line.encode() + b"\n")
        except TimeoutError as error:
            raise AuditError(f"the disk did not take the line within {WRITE_SECONDS:.0f} s") from error
        except OSError as error:
            raise AuditError(error.strerror or "the file is not open") from error

    def note(self, event: Event) -> asyncio.Task[None]:
        """Add a line soon, for what has happened already; a failure is logged, with the line. Nobody needs to wait for the task."""
        task = asyncio.create_task(self._write_or_log(event))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        return task

    async def close(self) -> None:
        """Write what is noted, then close the file."""
        await asyncio.gather(*self._notes)
        self._writer.submit(self._close)
        # Not waited for: a disk that hangs must not hold up the stop, and a line that counts was waited for.
        self._writer.shutdown(wait=False)

    async def _write_or_log(self, event: Event) -> None:
        try:
            await self.write(event)
        except AuditError as error:
            # One line says it all, and it is the only place that has it.
            log.error("the audit log is not written (%s): %s", error, self._line(event), extra=EVERY_ONE)  # noqa: TRY400

    def _line(self, event: Event) -> str:
        now = dt.datetime.fromtimestamp(self._wall_clock(), dt.UTC)
        stamped = {"time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        return json.dumps(stamped | {key: plain(v, TEXT_LIMIT_BYTES) if isinstance(v, str) else v for key, v in event.items()})

    def _append(self, data: bytes) -> None:
        if self._fd is None:
            raise OSError
        whole = b"\n" + data if self._torn else data
        written = 0
        try:
            written = os.write(self._fd, whole)
            if written == len(whole):
                os.fsync(self._fd)
        finally:
            self._torn = written < len(whole) if written else self._torn
        if written < len(whole):
            raise OSError(None, "the disk is full")

    def _reopen(self, file: Path) -> None:
        fd = _opened(file)
        self._close()
        self._fd = fd
        self._torn = _ends_torn(fd)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _told_with(event: Event) -> Mapping[str, object]:
    """How the proxy's log treats the line: a call that was refused changed nothing, and who repeats it is told once a minute."""
    if event.get("event") != "refused":
        return EVERY_ONE
    return about(f"{event.get('method')} {lasting_name(str(event.get('who')))} {event.get('outcome')}")


def _opened(file: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            fd = os.open(file, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError:
            fd = os.open(file, flags)
        else:
            # The umask does not know who reads audit logs.
            os.fchmod(fd, FILE_MODE)
    except OSError as error:
        raise SettingsError(f"audit.file: {file}: cannot be written: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SettingsError(f"audit.file: {file}: is no regular file")
    return fd


def _ends_torn(fd: int) -> bool:
    """Whether the file's last line has no end: the proxy, or the machine, died while it was written."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
