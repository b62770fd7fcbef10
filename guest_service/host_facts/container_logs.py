"""One container's log as a bounded stream: a thread reads what the engine sends, the event loop takes it as fast as its reader does.

The engine's SDK blocks in the socket, for good when a log is followed, so each stream has a thread and ends by shutting the socket. When
the reader is slow the thread waits, and with it the engine: nothing is dropped or piled up. Rejected: an unbounded queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from guest_service.host_facts.errors import FactError
from guest_service.host_facts.off_loop import start_thread

# Two screens of long lines; a reader that is further behind makes the engine wait.
BUFFER_LIMIT_BYTES = 256 * 1024
# A frame announced longer than this is no log line.
CHUNK_BYTES = 64 * 1024


class EngineLog(Protocol):
    """What is used of the engine's own stream: chunks, and an end that another thread can bring about."""

    def __iter__(self) -> Iterator[bytes]: ...

    def wake(self) -> None:
        """Let whoever reads it come back."""

    def release(self) -> None:
        """Close its connection; called by the thread that reads it."""


class LogStream:
    """An asynchronous iterator over the bytes of one log; aclose() ends it early."""

    def __init__(self, container: str, start: Callable[[], EngineLog]) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._news = asyncio.Event()
        self._room = threading.Condition()
        self._buffer = bytearray()
        self._log: EngineLog | None = None
        self._closed = False
        self._ended = False
        start_thread("containers", self._run, name=f"logs {container}")

    async def opened(self, bound_seconds: float) -> None:
        """Return once the engine has begun to answer; raises what it refused with, FactError when it takes too long."""
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), bound_seconds)
        except TimeoutError:
            await self.aclose()
            raise FactError("containers", f"the engine gave no answer within {bound_seconds:g} s") from None
        except asyncio.CancelledError:
            await self.aclose()
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._ended or self._closed

    def __aiter__(self) -> LogStream:
        return self

    async def __anext__(self) -> bytes:
        while True:
            with self._room:
                chunk = bytes(self._buffer)
                self._buffer.clear()
                self._room.notify()
            if chunk:
                return chunk
            if self.closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        """End the stream; its thread and its connection are gone soon after."""
        with self._room:
            self._closed = True
            self._room.notify()
        self._news.set()
        if self._log is not None:
            self._log.wake()

    def _run(self) -> None:
        try:
            self._log = self._start()
            self._tell(self._on_opened, None)
            for chunk in self._log:
                if not self._put(chunk):
                    break
        except FactError as error:
            self._tell(self._on_opened, error)
        except Exception as error:  # noqa: BLE001 -- the thread's top; a stream that was shut under the SDK raises what it likes
            self._tell(self._on_opened, FactError("containers", f"the engine answers badly: {type(error).__name__}: {error}"))
        finally:
            if self._log is not None:
                self._log.release()
            self._tell(self._on_ended)

    def _put(self, chunk: bytes) -> bool:
        for start in range(0, len(chunk), CHUNK_BYTES):
            with self._room:
                self._room.wait_for(lambda: self._closed or len(self._buffer) < BUFFER_LIMIT_BYTES)
                if self._closed:
                    return False
                self._buffer += chunk[start : start + CHUNK_BYTES]
            self._tell(self._news.set)
        return True

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        # RuntimeError: the loop was closed meanwhile; nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *arguments)

    def _on_opened(self, error: FactError | None) -> None:
        if self._opened.done():
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)
            self._opened.exception()  # Read once: an opener that went away is no surprise worth a log line.

    def _on_ended(self) -> None:
        self._ended = True
        self._news.set()
