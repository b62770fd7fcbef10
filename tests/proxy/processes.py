"""`vmm-proxy` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence


class ProxyProcess:
    """A running `vmm-proxy serve`; its stderr is kept line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def listening(self) -> str:
        """Wait until it listens; the address it says."""
        assert self.process.stderr is not None
        while line := (await asyncio.wait_for(self.process.stderr.readline(), 20)).decode():
            self.lines.append(line)
            if "listening on " in line:
                return line.split("listening on ")[1].strip()
        raise AssertionError(f"it ended instead: {self.lines}")

    async def log_line(self, words: str) -> str:
        """The next line of the log that has `words`."""
        assert self.process.stderr is not None
        while line := (await asyncio.wait_for(self.process.stderr.readline(), 60)).decode():
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"no line with {words!r} in {self.lines}")

    async def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send `number` and wait; exit status, stdout, stderr."""
        self.process.send_signal(number)
        return await self.end()

    async def end(self) -> tuple[int, str, str]:
        """Wait for its end; exit status, stdout, stderr."""
        out, err = await asyncio.wait_for(self.process.communicate(), 20)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), "".join(self.lines) + err.decode()


async def start(*arguments: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> ProxyProcess:
    """`prefix`: what starts it."""
    return ProxyProcess(
        await asyncio.create_subprocess_exec(
            *prefix,
            sys.executable,
            "-m",
            "vmm_proxy",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
    )


async def run(*arguments: str) -> tuple[int, str, str]:
    return await (await start(*arguments)).end()


@contextlib.asynccontextmanager
async def serving(*arguments: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> AsyncIterator[ProxyProcess]:
    """`vmm-proxy serve` with `arguments`, listening; without pages unless `arguments` say so; killed at the end if it still runs."""
    pages = () if "--http" in arguments else ("--http", "off")
    proxy = await start("serve", *arguments, *pages, env=env, prefix=prefix)
    try:
        await proxy.listening()
        yield proxy
    finally:
        if proxy.process.returncode is None:
            proxy.process.kill()
            await proxy.end()
