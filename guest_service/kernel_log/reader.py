"""Reads the kernel log on the event loop: first what the ring still holds, which is what happened since boot, then as it comes.

/dev/kmsg gives one record for each read; a FIFO with the same records serves tests and containers and has no borders, so records are
split at line ends. It fails open: a log that cannot be read leaves the counts unknown, says so once, and is what the doctor explains.
Rejected: NVML's event set, which only a process that stays can hold; and `dmesg --follow`, a process more with the same rights.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from guest_service.kernel_log.records import RECORD_LIMIT_BYTES, Appeared, Xid, parse
from guest_service.kernel_log.xids import Xids
from guest_transport.process.clock import Clock

log = logging.getLogger(__name__)

# Records of one turn of the loop; each takes some 5 microseconds, so that a flood holds nobody up.
RECORDS_AT_A_TIME = 200
# What a FIFO's writer may leave without a line end before it is thrown away.
LINE_LIMIT_BYTES = RECORD_LIMIT_BYTES
# Under this the machine has not slept: the two clocks are read one after the other.
AWAKE_SECONDS = 0.5


class KernelLog:
    """The reader of one log, and the counts that it made."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        awake: Callable[[], float] = time.monotonic,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path = path
        self._read_some = read
        self._clock = clock
        self._awake = awake
        self._fd: int | None = None
        self._fifo = False
        self._rest = b""
        # Until the ring was read to its end, records are older than this process.
        self.caught_up = False
        self._xids = Xids()
        # How often the kernel overwrote records before they were read.
        self.lost = 0
        # Why the log cannot be read; empty while it is read.
        self.problem = "not opened yet"

    @property
    def xids(self) -> Xids | None:
        """The counts; None while the log cannot be read, which is not the same as no XID."""
        return None if self._fd is None else self._xids

    async def start(self) -> None:
        """Open the log and begin to read; never raises for a log that is not there."""
        try:
            fd, self._fifo = await asyncio.to_thread(open_log, self._path)
        except OSError as error:
            self._cannot(error)
            return
        try:
            asyncio.get_running_loop().add_reader(fd, self._read)
        except OSError as error:
            # Not every device can be waited for: a container may have /dev/null in this place.
            os.close(fd)
            self._cannot(error)
            return
        self._fd, self.problem = fd, ""

    async def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read(self) -> None:
        assert self._fd is not None  # noqa: S101 - a reader is registered while there is a descriptor
        for _ in range(RECORDS_AT_A_TIME):
            try:
                data = self._read_some(self._fd, RECORD_LIMIT_BYTES)
            except BlockingIOError:
                self.caught_up = True
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.lost += 1
                    continue
                if error.errno == errno.EINVAL:
                    # A record longer than the buffer; the kernel goes on behind it.
                    continue
                self._give_up(error)
                return
            if not data:
                # Neither a kernel log nor a FIFO that is open for writing has an end; to go on would be to spin.
                self._give_up(OSError(errno.ENODATA, "it ended"))
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not self._fifo:
            self._note(data)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._note(line)
        if len(self._rest) > LINE_LIMIT_BYTES:
            self._rest = b""

    def _note(self, record: bytes) -> None:
        match parse(record):
            case Xid() as report:
                self._xids.add(report, self._time_of(report))
            case Appeared(address):
                self._xids.forget(address)

    def _time_of(self, report: Xid) -> float | None:
        now, awake = self._clock(), self._awake()
        if self.caught_up:
            return now
        # The stamp does not count suspend; when the machine slept, before the report or after it, nobody knows any more.
        return now - max(0.0, awake - report.seconds) if now - awake < AWAKE_SECONDS else None

    def _cannot(self, error: OSError) -> None:
        self.problem = f"{self._path}: {error.strerror}"
        log.warning("XIDs are not known: %s (guest-service doctor says what to do)", self.problem)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{self._path}: {error.strerror}"
        log.warning("XIDs are not known any more: %s", self.problem)
        assert self._fd is not None  # noqa: S101 - as above
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = None


def open_log(path: Path) -> tuple[int, bool]:
    """A descriptor to read `path` from, and whether it is a FIFO; OSError for what is neither a device nor a FIFO. Blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISCHR(mode):
        return fd, False
    os.close(fd)
    if not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "neither a device nor a FIFO", str(path))
    # A FIFO that is open for writing here too has no end when its last writer goes.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), True
