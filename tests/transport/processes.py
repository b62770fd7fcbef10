"""Starts the server process of the tests, reads what it says, and never leaves it behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

# For a process to start (imports on a busy machine) or to end; what a test promises is measured apart from this.
PATIENCE_SECONDS = 20


class ServerProcess:
    """A running server process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.addresses: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self) -> str:
        """The next line on its stdout; empty at its end."""
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)).decode().strip()

    async def serving(self) -> None:
        """Returns when it serves."""
        said = (await self.line()).split()
        assert said[:1] == ["serving"], await self.ended()
        self.addresses = said[1:]

    def answer_calls(self) -> None:
        """Lets every waiting call answer."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> tuple[int, list[str]]:
        """Its exit status and the lines on its stderr, once it has ended."""
        assert self._process.stderr is not None
        text = await asyncio.wait_for(self._process.stderr.read(), PATIENCE_SECONDS)
        status = await asyncio.wait_for(self._process.wait(), PATIENCE_SECONDS)
        return status, text.decode().splitlines()

    async def close(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self.answer_calls()
        # Also takes what is left in its pipes, so that their transports close.
        await self._process.communicate()


@contextlib.asynccontextmanager
async def server_process(*arguments: str, umask: int = -1) -> AsyncIterator[ServerProcess]:
    """A server process on `arguments`; killed at the end, if it still lives."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.transport.server_process",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        umask=umask,
    )
    server = ServerProcess(process)
    try:
        yield server
    finally:
        await server.close()
