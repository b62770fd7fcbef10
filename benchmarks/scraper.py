"""A real Prometheus and other processes with a log, for benchmarks: what it says of itself, and what the kernel says of it.

Rejected: the helpers of tests (a benchmark needs nothing of pytest).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

START_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


class Prometheus:
    """A running server and its process. Any: JSON as Prometheus documents it."""

    def __init__(self, pid: int, address: str) -> None:
        self._pid = pid
        self._address = address

    async def _get(self, path: str, *, method: str = "GET") -> bytes:
        def ask() -> bytes:
            request = urllib.request.Request(f"http://{self._address}{path}", method=method)
            with urllib.request.urlopen(request, timeout=60) as answer:
                data: bytes = answer.read()
                return data

        return await asyncio.to_thread(ask)

    async def value(self, expression: str) -> float:
        """The one value of `expression`; 0 for none."""
        data: Any = json.loads(await self._get(f"/api/v1/query?query={urllib.parse.quote(expression)}"))
        found = data["data"]["result"]
        assert len(found) <= 1, expression
        return float(found[0]["value"][1]) if found else 0.0

    async def own(self, name: str) -> float:
        """A metric of its own; the sum, where labels divide it."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", (await self._get("/metrics")).decode(), re.MULTILINE)
        assert found, name
        return sum(map(float, found))

    async def snapshot(self) -> str:
        """Write all that it has as blocks; the name of their folder."""
        answer: Any = json.loads(await self._get("/api/v1/admin/tsdb/snapshot", method="POST"))
        return str(answer["data"]["name"])

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """What proc(5) says of its memory; VmHWM is the most that it was."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


async def line_with(process: asyncio.subprocess.Process, pattern: str) -> str:
    """The first group of the first line of its log that has `pattern`; the rest is read and dropped from then on."""
    assert process.stderr is not None
    async with asyncio.timeout(START_SECONDS):
        while line := (await process.stderr.readline()).decode():
            if found := re.search(pattern, line):
                return found[1]
    raise SystemExit(f"{pattern}: a process ended before it said so")


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with a log, ended with this."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # To its end, or a full pipe would keep it from ending.
        await process.communicate()


async def dropped(process: asyncio.subprocess.Process) -> None:
    """Read its log to its end, so that a full pipe does not hold it up."""
    assert process.stderr is not None
    while await process.stderr.readline():
        pass
