"""One connection to the cluster's API server: lists the instances of a node, and watches what becomes of them.

lightkube finds the server and says who we are (kubeconfig, service account, TLS) and builds the requests; the list and the watch are made
here, because its own watch asks for no bookmarks, waits for ever on a server that has gone silent, and starts again without telling. Every
answer is bounded in time and in bytes. A kubeconfig that runs a program (exec) is refused: this process starts none that a file names.
Rejected: kubernetes-asyncio (90 MB of generated models in this process), kr8s (no bookmarks either, and lists again by itself).

    ApiServerError          why there is no answer, in words for an operator
    └── ExpiredError        the version is older than what the server remembers (410 Gone): list again
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import yaml
from lightkube import ALL_NS, ConfigError, KubeConfig, SingleConfig
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.models import User
from lightkube.core.generic_client import GenericAsyncClient
from lightkube.generic_resource import create_namespaced_resource

from guest_transport.process.logs import escape
from vmm_proxy.directory.kubevirt.instance import NODE_LABEL

# Where the kubelet puts a pod's token, and keeps it fresh.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A watch is ended by the server after this long and started again with a token that was read anew: the kubelet renews one of an hour
# twelve minutes before its end. A server that hangs with its connection open is noticed at the end of a watch.
WATCH_SECONDS = 180
# The end of a watch may come a little later than asked.
WATCH_LIMIT_SECONDS = WATCH_SECONDS + 20.0
# A server under load answers a list in seconds.
ANSWER_SECONDS = 15.0
# Instances in one answer, where the server makes pages of a list.
PAGE_ITEMS = 100
# More VMs than any node runs.
INSTANCES_LIMIT = 4096
# etcd takes objects of 1.5 MiB; an instance has some 20 kB.
LINE_LIMIT_BYTES = 4 * 1024 * 1024
LIST_LIMIT_BYTES = 64 * 1024 * 1024
# What a server says of a refusal; more of it is not read.
REFUSAL_LIMIT_BYTES = 64 * 1024
REASON_LIMIT_CHARACTERS = 300
# A peer that is gone without a word is noticed after 15 s + 3 · 5 s.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]

_INSTANCES = create_namespaced_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")


class ApiServerError(Exception):
    """No answer, or a refusal. `retry_after_seconds`: how long the server asks to be left alone."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(escape(reason)[:REASON_LIMIT_CHARACTERS])
        self.retry_after_seconds = retry_after_seconds


class ExpiredError(ApiServerError):
    """What changed since the version is not remembered any more."""


class _ListMetadata(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    go_on: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...]
    metadata: _ListMetadata


class _Refusal(msgspec.Struct, frozen=True):
    """A Status."""

    message: str = ""
    code: int = 0


class Event(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Listing:
    """The instances of one moment as JSON, and the version to watch from."""

    items: tuple[msgspec.Raw, ...]
    version: str


class ApiServer:
    """Instances of `node` in `namespace`; all namespaces when that is empty."""

    def __init__(
        self, client: GenericAsyncClient, *, node: str, namespace: str, answer_seconds: float, watch_limit_seconds: float
    ) -> None:
        # Any: lightkube has no hints for send() and close().
        self._client: Any = client
        self._node = node
        self._namespace = namespace or ALL_NS
        self._answer_seconds = answer_seconds
        self._watch_limit_seconds = watch_limit_seconds

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()

    async def list(self, *, from_cache: bool) -> Listing:
        """All instances; with `from_cache` as the server has them at hand, which may be some seconds old. Raises ApiServerError."""
        items: list[msgspec.Raw] = []
        # "0" is any version (client-go's first list too); a server makes no pages of it.
        params = {"resourceVersion": "0"} if from_cache else {"limit": str(PAGE_ITEMS)}
        while True:
            async with _translated(), asyncio.timeout(self._answer_seconds), self._answer(params) as response:
                data = await _whole(response, LIST_LIMIT_BYTES)
            try:
                page = msgspec.json.decode(data, type=_List)
            except msgspec.MsgspecError as error:
                raise ApiServerError(f"the answer is no list of instances: {error}") from error
            items.extend(page.items)
            if len(items) > INSTANCES_LIMIT:
                raise ApiServerError(f"the list has no end: more than {INSTANCES_LIMIT} instances on one node")
            if not page.metadata.go_on:
                return Listing(tuple(items), page.metadata.resource_version)
            params = {"limit": str(PAGE_ITEMS), "continue": page.metadata.go_on}

    @contextlib.asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[AsyncIterator[Event]]:
        """What changes after `version`, until the server ends it. Raises ApiServerError, also while it is read."""
        params = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        async with _translated(), asyncio.timeout(self._answer_seconds) as bound, self._answer(params, watch=True) as response:
            bound.reschedule(asyncio.get_running_loop().time() + self._watch_limit_seconds)
            yield _events(response)

    @contextlib.asynccontextmanager
    async def _answer(self, params: dict[str, str], *, watch: bool = False) -> AsyncIterator[httpx2.Response]:
        selected = {**params, "labelSelector": f"{NODE_LABEL}={self._node}"}
        request = self._client.prepare_request("list", _INSTANCES, namespace=self._namespace, watch=watch, params=selected)
        # asyncio.timeout bounds all of it; httpx's own would end a watch in which nothing happens.
        request.timeout = httpx2.Timeout(None)
        response: httpx2.Response = await self._client.send(self._client.build_adapter_request(request), stream=True)
        try:
            if response.status_code != httpx2.codes.OK:
                raise _refusal(response, await _whole(response, REFUSAL_LIMIT_BYTES))
            yield response
        finally:
            await response.aclose()


def open_api_server(
    kubeconfig: Path | None,
    *,
    node: str,
    namespace: str = "",
    service_account: Path = SERVICE_ACCOUNT,
    answer_seconds: float = ANSWER_SECONDS,
    watch_limit_seconds: float = WATCH_LIMIT_SECONDS,
) -> ApiServer:
    """A connection that is made at the first question; reads token and certificates now. Raises ApiServerError. Blocks."""
    # It writes a line for every request.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        config = _with_token((KubeConfig.from_file(kubeconfig) if kubeconfig else _of_pod(service_account)).get())
        context = verify_cluster(config.cluster, config.user or User(), config.abs_file, trust_env=False)
        # Any: the hint names the transport of the client without asyncio.
        transport: Any = httpx2.AsyncHTTPTransport(verify=context, trust_env=False, socket_options=_KEEPALIVE)
        # trust_env: neither proxies nor passwords of the environment belong between this host and its API server.
        client = GenericAsyncClient(ConnectionParams(trust_env=False, transport=transport), config)
    except (
        ConfigError,
        OSError,
        ssl.SSLError,
        yaml.YAMLError,
        msgspec.MsgspecError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        raise ApiServerError(f"{kubeconfig or service_account}: cannot be used: {error}") from error
    return ApiServer(
        client, node=node, namespace=namespace, answer_seconds=answer_seconds, watch_limit_seconds=watch_limit_seconds
    )


def _of_pod(service_account: Path) -> KubeConfig:
    try:
        return KubeConfig.from_service_account(service_account)
    except (ConfigError, LookupError) as error:
        raise ApiServerError("this is no pod with a service account: set kubevirt.kubeconfig") from error


def _with_token(config: SingleConfig | None) -> SingleConfig:
    """`config` with its token read; refuses what is not used here."""
    if config is None:
        raise ApiServerError("the kubeconfig has no current context")
    if not config.cluster.server.startswith("https://"):
        raise ApiServerError("an API server is asked by https only")
    user = config.user or User()
    if user.exec or user.auth_provider:
        raise ApiServerError("a kubeconfig that runs a program or asks a provider is not used: give it a token or a certificate")
    token = Path(config.abs_file(user.token_file)).read_text(encoding="ascii") if user.token_file else user.token
    return config._replace(user=msgspec.structs.replace(user, token=token and token.strip(), token_file=None))


async def _whole(response: httpx2.Response, limit_bytes: int) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limit_bytes:
            raise ApiServerError(f"the answer is longer than {limit_bytes} bytes")
    return bytes(data)


async def _events(response: httpx2.Response) -> AsyncIterator[Event]:
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        *lines, last = (rest + chunk).split(b"\n")
        rest = last
        for line in filter(None, lines):
            yield _event(bytes(line))
        if len(rest) > LINE_LIMIT_BYTES:
            raise ApiServerError(f"a line of the watch is longer than {LINE_LIMIT_BYTES} bytes")


def _event(line: bytes) -> Event:
    try:
        event = msgspec.json.decode(line, type=Event)
        if event.type != "ERROR":
            return event
        refusal = msgspec.json.decode(event.object, type=_Refusal)
    except msgspec.MsgspecError as error:
        raise ApiServerError(f"a line of the watch is no event: {error}") from error
    raise _of_code(refusal.code, refusal.message)


def _refusal(response: httpx2.Response, data: bytes) -> ApiServerError:
    try:
        message = msgspec.json.decode(data, type=_Refusal).message
    except msgspec.MsgspecError:
        # A proxy or a load balancer in between, which speaks no Kubernetes.
        message = response.reason_phrase
    wait = response.headers.get("retry-after", "")
    return _of_code(response.status_code, message, float(wait) if wait.isdecimal() and len(wait) < 4 else 0.0)


def _of_code(code: int, message: str, retry_after_seconds: float = 0.0) -> ApiServerError:
    match code:
        case httpx2.codes.GONE:
            return ExpiredError(message)
        case httpx2.codes.UNAUTHORIZED:
            return ApiServerError(f"the API server does not take the token or certificate: {message}")
        case httpx2.codes.FORBIDDEN:
            return ApiServerError(f"not allowed, see the roles of deploy/kubernetes: {message}")
        case httpx2.codes.NOT_FOUND:
            return ApiServerError(f"the cluster has no VirtualMachineInstances, is KubeVirt installed? {message}")
    return ApiServerError(f"the API server answers {code}: {message}", retry_after_seconds)


@contextlib.asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiServerError("the API server has not answered in time") from error
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
        raise ApiServerError(f"the API server is not reached: {str(error) or type(error).__name__}") from error
