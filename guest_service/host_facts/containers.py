"""The guest's containers, asked of Docker's or Podman's API on a Unix socket.

No socket means a guest without an engine: none, and nothing is imported. A socket that answers badly is a failure with its reason, never an
empty list. The SDK blocks, so it runs in a thread, with a client per call that leaves no descriptor behind. Rejected: the SDK's
`containers.list`, which inspects every container one by one.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guest_api import guest_api_pb2
from guest_service.host_facts.container_logs import LogStream
from guest_service.host_facts.errors import FactError, UnknownContainerError
from guest_service.host_facts.off_loop import OffLoop

if TYPE_CHECKING:
    import docker
    import requests

# Where Docker and Podman listen when nobody says otherwise.
ENGINE_SOCKETS = (Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"))
_API_VERSION = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)
# An engine with a thousand containers answers in about a second; one that pulls an image on a slow disk takes some more.
ENGINE_BOUND_SECONDS = 10
# A container takes 1 to 2 KiB in the list; thousands fit.
ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
# Each stream holds a thread and a connection to the engine.
LOG_STREAMS = 16
# A name or id as engines take it. Anything else would be a path into the engine's API.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class ContainerEngine:
    """Lists containers and streams their logs; `sockets` are tried in order, the first that exists is the engine.

    `named`: they are what the configuration names, so one of them must be there; else a guest may have no engine.
    """

    def __init__(
        self, sockets: Sequence[Path] = ENGINE_SOCKETS, *, named: bool = False, bound_seconds: float = ENGINE_BOUND_SECONDS
    ) -> None:
        self._sockets = tuple(sockets)
        self._named = named
        self._bound_seconds = bound_seconds
        self._list = OffLoop("containers", self._read_list, bound_seconds)
        self._streams: set[LogStream] = set()

    async def list(self) -> guest_api_pb2.ListContainersResponse:
        """All containers, running or not; FactError when the engine answers badly or not within 10 s."""
        found = guest_api_pb2.ListContainersResponse()
        found.CopyFrom(await self._list.get())
        return found

    async def open_logs(
        self,
        container: str,
        *,
        since: float | None = None,
        until: float | None = None,
        tail: int | None = None,
        follow: bool = False,
        timestamps: bool = False,
    ) -> LogStream:
        """The logs of `container` as a stream of bytes, which the caller closes; since and until in unix seconds, tail in lines.

        Raises UnknownContainerError for a name that is none, FactError when the engine answers badly or too many streams are open.
        """
        if not _NAME.fullmatch(container):
            raise UnknownContainerError("containers", f"no container is named {container[:64]!r}")
        self._streams = {stream for stream in self._streams if not stream.closed}
        if len(self._streams) >= LOG_STREAMS:
            raise FactError("containers", f"{LOG_STREAMS} log streams are open already")

        def start() -> _EngineLog:
            client = self._client()
            if client is None:
                raise UnknownContainerError("containers", "this guest has no container engine")
            with _closed_on_failure(client):
                # Asked first: logs() of an unknown container leaves its connection open.
                client.inspect_container(container)
                chunks = client.logs(
                    container,
                    stream=True,
                    follow=follow,
                    timestamps=timestamps,
                    tail="all" if tail is None else tail,
                    since=None if since is None else datetime.fromtimestamp(since, UTC),
                    until=None if until is None else datetime.fromtimestamp(until, UTC),
                )
                return _EngineLog(client, chunks)

        stream = LogStream(container, start)
        self._streams.add(stream)
        await stream.opened(self._bound_seconds)
        return stream

    async def logs(
        self,
        container: str,
        *,
        since: float | None = None,
        until: float | None = None,
        tail: int | None = None,
        follow: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """open_logs() as a generator: its refusals come with the first step, and closing the generator ends the stream."""
        stream = await self.open_logs(container, since=since, until=until, tail=tail, follow=follow, timestamps=timestamps)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()

    async def close(self) -> None:
        """End all log streams."""
        for stream in self._streams:
            await stream.aclose()

    def _client(self) -> docker.APIClient | None:
        try:
            path = next((path for path in self._sockets if path.exists()), None)
        except OSError as error:
            raise FactError("containers", f"{error.filename}: {error.strerror or error}") from error
        if path is None:
            if self._named:
                missing = ", ".join(map(str, self._sockets))
                raise FactError("containers", f"{missing} does not exist, and containers.socket names it")
            return None
        _knock(path)
        import docker.constants  # noqa: PLC0415 -- 0.1 s and 15 MB that a guest without an engine never needs

        def client(version: str) -> docker.APIClient:
            made = docker.APIClient(base_url=f"unix://{path}", version=version, timeout=ENGINE_BOUND_SECONDS)
            made.hooks["response"].append(_bounded)
            return made

        # The SDK's own "auto" asks in the constructor, where a failure leaves its connection open.
        asking = client(docker.constants.DEFAULT_DOCKER_API_VERSION)
        with _closed_on_failure(asking):
            # Not /version: for that one Podman asks the package manager about each of its programs (0.5 s of a core on Debian).
            version = asking.get(f"{asking.base_url}/_ping", timeout=ENGINE_BOUND_SECONDS).headers["Api-Version"]
            if not _API_VERSION.fullmatch(version):
                raise ValueError(f"{version[:20]!r} is no version of an API")
        asking.close()
        # Without a connection yet; what is closed again is the one that asked.
        with _closed_on_failure(asking):
            return client(version)

    def _read_list(self) -> guest_api_pb2.ListContainersResponse:
        client = self._client()
        if client is None:
            return guest_api_pb2.ListContainersResponse()
        with _closed_on_failure(client):
            entries = client.containers(all=True)
        client.close()
        try:
            return guest_api_pb2.ListContainersResponse(containers=[_container(entry) for entry in entries])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FactError("containers", f"the engine's list is not as documented: {type(error).__name__}: {error}") from error


def _bounded(response: requests.Response, **sent: Any) -> requests.Response:  # Any: what requests tells its hooks
    """Read a whole answer within the bounds of size and time; the SDK would read one that never ends into memory for ever."""
    if sent.get("stream"):
        return response
    body, deadline = bytearray(), time.monotonic() + ENGINE_BOUND_SECONDS
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > ANSWER_LIMIT_BYTES or time.monotonic() > deadline:
            response.close()
            what = f"more than {ANSWER_LIMIT_BYTES} bytes" if len(body) > ANSWER_LIMIT_BYTES else "without an end"
            raise FactError("containers", f"the engine's answer is {what}")
    response._content = bytes(body)  # where requests keeps what it has read itself; it offers no bound
    return response


def _knock(path: Path) -> None:
    """Raise FactError when nobody serves the socket; the SDK would leave the descriptor of its vain try open."""
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(ENGINE_BOUND_SECONDS)
        try:
            door.connect(str(path))
        except OSError as error:
            raise FactError("containers", f"the engine's socket: {error.strerror or error}") from error


class _EngineLog:
    """The SDK's stream of one log, and the client that it needs."""

    def __init__(
        self, client: docker.APIClient, chunks: Any
    ) -> None:  # Any: CancellableStream, which the SDK's stubs do not type
        self._client = client
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def wake(self) -> None:
        """Shut the socket from another thread, so that whoever reads it comes back."""
        # AttributeError: the SDK looks for the socket inside a response that has just ended.
        with contextlib.suppress(OSError, AttributeError):
            self._chunks.close()

    def release(self) -> None:
        """Close the connection; the SDK's own close leaves its descriptor to the garbage collector."""
        self._chunks._response.close()
        self._client.close()


def _container(entry: Mapping[str, Any]) -> guest_api_pb2.Container:  # Any: JSON; protobuf checks the types
    return guest_api_pb2.Container(
        id=entry["Id"],
        names=entry["Names"] or (),
        image=entry["Image"],
        image_id=entry["ImageID"],
        created=entry["Created"],
        state=entry["State"],
        status=entry["Status"],
    )


@contextlib.contextmanager
def _closed_on_failure(client: docker.APIClient) -> Iterator[None]:
    """Turn the exceptions of the SDK and of its libraries into ours, and close `client` when there is one."""
    import docker.errors  # noqa: PLC0415 -- imported by now
    import requests  # noqa: PLC0415 -- the SDK's HTTP

    try:
        yield
    except docker.errors.NotFound as error:
        client.close()
        raise UnknownContainerError("containers", str(error.explanation or "no such container")) from error
    except FactError:
        client.close()
        raise
    except (
        docker.errors.DockerException,
        requests.RequestException,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        client.close()
        raise FactError("containers", f"the engine answers badly: {type(error).__name__}: {error}") from error
