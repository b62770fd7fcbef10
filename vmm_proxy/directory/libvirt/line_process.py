"""A child process that writes lines: started without stalling the loop, read within bounds, always reaped.

Rejected: asyncio.create_subprocess_exec (on Python 3.11 a thread per child, and its wait() is for the pipes too).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Sequence

from guest_transport.process.child_end import child_ended

log = logging.getLogger(__name__)

# After SIGKILL only a call stuck in the kernel keeps a process; nobody waits longer for it.
END_LIMIT_SECONDS = 2.0


class LineProcess:
    """A running child, leader of a process group of its own; its stdin and stderr are /dev/null. start() raises OSError."""

    def __init__(self, process: subprocess.Popen[bytes], lines: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._process = process
        self._lines = lines
        self._pipe = pipe

    @classmethod
    async def start(cls, argv: Sequence[str], *, line_limit_bytes: int) -> LineProcess:
        """Start `argv`; a line may have `line_limit_bytes`."""
        process, read_end = _start(argv)
        lines = asyncio.StreamReader(limit=line_limit_bytes)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines),
            open(read_end, "rb", buffering=0),  # noqa: SIM115, PTH123, ASYNC230  # a descriptor, which the transport closes
        )
        return cls(process, lines, pipe)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def line(self) -> bytes:
        """The next line; empty when the child closed its stdout. Raises ValueError for a line longer than the limit."""
        return await self._lines.readline()

    async def end(self) -> int | None:
        """Kill it and reap it; its exit status (negative: the signal), or None when it cannot be ended."""
        self._pipe.close()
        status = self._process.poll()
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child_ended(self._process.pid), END_LIMIT_SECONDS)
            status = self._process.poll()
        if status is None:
            log.error("process %d does not end after SIGKILL; it is left to the kernel", self._process.pid)
            # Popen would warn about a child that is still there; that it is there is known and logged.
            self._process.returncode = -9
        return status


def _start(argv: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the end of its stdout to read from. Takes 0.2 ms."""
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.DEVNULL, close_fds=True, start_new_session=True
        )
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return process, read_end
