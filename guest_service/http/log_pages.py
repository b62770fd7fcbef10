"""`/logs/{container}`: a container's output as plain text, streamed.

The container's name from the URL never reaches the engine: it is looked up in the engine's own list, and only an id from there is asked
for. What the container wrote is its own and hostile: it is served as text/plain that no browser may take for anything else. Streams are
bounded in number and time, and end when the agent stops. Rejected: server-sent events (curl and a browser show plain text as it is).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guest_api.guest_api_pb2 import Container
from guest_service.http.log_query import LogQuery, LogQueryError, parse_log_query
from guest_service.http.parts import HttpParts
from guest_transport.http.bounded_stream import BoundedStream, StreamAnswer, StreamPlaces

log = logging.getLogger(__name__)

# An eighth of the requests at once: people who follow logs must not keep scrapers out.
STREAMS_AT_ONCE = 8
# Long enough to watch something happen; a forgotten tab then ends by itself.
STREAM_SECONDS = 600.0
# The engine's own bound is 10 s.
LOOKUP_SECONDS = 12.0
_SHORT_ID = re.compile(r"[0-9a-f]{12,64}")


class LogPages:
    """Answers `/logs/{container}`; `stopping` ends every stream."""

    def __init__(
        self,
        parts: HttpParts,
        stopping: asyncio.Event,
        *,
        streams_at_once: int = STREAMS_AT_ONCE,
        stream_seconds: float = STREAM_SECONDS,
    ) -> None:
        self._parts = parts
        self._stopping = stopping
        self._places = StreamPlaces(streams_at_once, "log streams")
        self._stream_seconds = stream_seconds

    async def answer(self, request: Request) -> Response:
        """The output that the query asks for; 404 unless logs are public and the container is one."""
        if not self._parts.switches().public_logs:
            raise HTTPException(404, "not found: container logs are off; http.public_logs turns them on")
        try:
            query = parse_log_query(request.query_params.multi_items(), self._parts.now())
        except LogQueryError as error:
            raise HTTPException(400, str(error)) from error
        # Taken before the first await, or a burst would pass the limit together.
        give_back = self._places.take(request)
        try:
            container_id = await self._find(request.path_params["container"])
        except BaseException:
            give_back()
            raise
        if request.method == "HEAD":
            give_back()
            return Response(media_type="text/plain")
        stream = self._open(container_id, query)
        return StreamAnswer(_with_last_words(container_id, stream), stream, give_back, media_type="text/plain")

    async def _find(self, name: str) -> str:
        reply = await self._parts.containers.look.within(LOOKUP_SECONDS)
        if reply is None:
            raise HTTPException(503, "the container engine does not answer; the agent's log has the cause", {"retry-after": "10"})
        container_id = find_container(reply.containers, name)
        if container_id is None:
            raise HTTPException(404, "not found: no container has this name or id")
        return container_id

    def _open(self, container_id: str, query: LogQuery) -> BoundedStream:
        chunks = self._parts.engine.logs(
            container_id,
            since=query.since,
            until=query.until,
            tail=query.tail,
            follow=query.follow,
            timestamps=query.timestamps,
        )
        return BoundedStream(chunks, stopping=self._stopping, seconds=self._stream_seconds)


async def _with_last_words(container_id: str, stream: BoundedStream) -> AsyncGenerator[bytes, None]:
    """The stream, and at its end a line of ours when it is cut: the client must learn that, and a status cannot be sent any more."""
    try:
        async for chunk in stream:
            yield chunk
    except TimeoutError:
        yield b"\n[guest-service: the time for one stream is over; ask again to go on]\n"
    except Exception as error:  # noqa: BLE001 -- the top of a stream; whatever the engine raises cuts this stream only, and is logged
        log.warning("log stream of container %s broke off: %s: %s", container_id[:12], type(error).__name__, error)
        yield b"\n[guest-service: the stream broke off; the agent's log has the cause]\n"


def find_container(containers: Sequence[Container], name: str) -> str | None:
    """The id of the container that `name` names: by name, by id, or by the beginning of one id (12 characters or more)."""
    for container in containers:
        if name == container.id or name in (given.removeprefix("/") for given in container.names):
            return container.id
    if _SHORT_ID.fullmatch(name):
        fitting = [container.id for container in containers if container.id.startswith(name)]
        if len(fitting) == 1:
            return fitting[0]
    return None
