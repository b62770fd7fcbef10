"""An endless source of bytes, taken until its time is over, the server stops, or its reader leaves.

A followed log waits for its next line for hours, and a cancelled reader must not leave that wait behind. So each step is a task of its
own that is cancelled with the reader, and the source is closed by aclose(), which the owner awaits where it is not cancelled itself.
Rejected: asyncio.timeout around a generator's yield (it would cancel whoever reads, not the generator).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from guest_transport.http.connections import peer_of


class BoundedStream:
    """Iterates over `chunks`; ends when `stopping` is set, raises TimeoutError after `seconds`."""

    def __init__(self, chunks: AsyncIterator[bytes], *, stopping: asyncio.Event, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._chunks = chunks
        self._now = loop.time
        self._deadline = loop.time() + seconds
        self._stop = loop.create_task(stopping.wait(), name="stream: stopping")
        self._step: asyncio.Future[bytes | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._stop.done():
            raise StopAsyncIteration
        step = self._step = asyncio.ensure_future(anext(self._chunks, None))
        left = max(0.0, self._deadline - self._now())
        await asyncio.wait({step, self._stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if self._stop.done():
            raise StopAsyncIteration
        if not step.done() or self._now() > self._deadline:
            raise TimeoutError
        chunk = step.result()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Cancel the step that may be waiting, and close the source."""
        for waiting in (self._stop, self._step):
            if waiting is not None and not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
        if self._step is not None and not self._step.cancelled():
            # Looked at, so that a failure nobody waited for is not reported as forgotten.
            self._step.exception()
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()


class StreamPlaces:
    """How many streams are open, in all and by peer: one beyond this machine has half of them at most."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._of_peer: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """How many streams are open."""
        return self._of_peer.total()

    def take(self, request: Request) -> Callable[[], None]:
        """Takes a place; what it returns gives it back. Raises HTTPException 503 when there is none."""
        peer = peer_of(request.scope.get("client"))
        if self.taken >= self._limit:
            raise HTTPException(503, f"busy: {self._limit} {self._what} are open", {"retry-after": "10"})
        half = max(1, self._limit // 2)
        if peer is not None and self._of_peer[peer] >= half:
            raise HTTPException(503, f"busy: {half} {self._what} are open at your address", {"retry-after": "10"})
        self._of_peer[peer] += 1

        def give_back() -> None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

        return give_back


class StreamAnswer(StreamingResponse):
    """A streamed answer of `chunks`, which are made from `stream`; however it ends, `stream` is closed and `leave` called."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        stream: BoundedStream,
        leave: Callable[[], None],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._stream = stream
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Here and not in the generator: there a client that went away cancels every further await.
            self._leave()
            await self._stream.aclose()
