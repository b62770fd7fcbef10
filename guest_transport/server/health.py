"""grpc.health.v1 for both servers: overall ("") and per service.

Rejected: grpcio-health-checking's own asyncio servicer (1.85). It holds a lock while it writes to a watcher, so one watcher that does not
read keeps the server from ever saying NOT_SERVING; its watchers also outlive the stop and use up the whole grace period. Here no watcher
can hold up another or the stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_transport.abort import abort
from guest_transport.peers import Peers, told_apart

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# A watcher is a call that never ends; these many leave most of the server's concurrent calls to those who ask for something.
WATCHERS_LIMIT = 128
# Of those, what one peer may hold: a load balancer, a dashboard and some more.
WATCHERS_OF_ONE = 32
# A watcher that reads gets NOT_SERVING within this before connections are told to go away; one that does not read is not waited for.
FAREWELL_SECONDS = 0.25

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_Context = grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated code without annotations
    """The health of the server and of each of `services`: NOT_SERVING until serve(), and again from stop() on for good."""

    def __init__(self, services: Iterable[str], peers: Peers) -> None:
        self._peers = peers
        self._status = dict.fromkeys(["", *services], _NOT_SERVING)
        self._changed = asyncio.Event()
        self._stopped = False
        # Ended when the watcher is; by what its peer is called on each of its connections.
        self._watchers: dict[asyncio.Future[None], str | None] = {}

    def serve(self) -> None:
        """Say SERVING for everything, unless stopped."""
        if not self._stopped:
            self._set_all(_SERVING)

    async def stop(self) -> None:
        """Say NOT_SERVING for good; returns when every watcher that reads has heard it, at the latest after FAREWELL_SECONDS."""
        self._stopped = True
        self._set_all(_NOT_SERVING)
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=FAREWELL_SECONDS)

    async def Check(  # noqa: N802  # the contract's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        """The health of one service; NOT_FOUND for a name that is none."""
        if request.service not in self._status:
            await abort(context, grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._status[request.service])

    async def List(self, request: health_pb2.HealthListRequest, context: object) -> health_pb2.HealthListResponse:  # noqa: N802, ARG002
        """The health of every service."""
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=status) for name, status in self._status.items()}
        )

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: _Context) -> None:  # noqa: N802  # the contract's name
        """The health of one service now and at each change; ends when the server stops."""
        if len(self._watchers) >= WATCHERS_LIMIT:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS_LIMIT} watchers already; use Check")
        who = told_apart(self._peers.of(context))
        if who is not None and list(self._watchers.values()).count(who) >= WATCHERS_OF_ONE:
            text = f"{who} has {WATCHERS_OF_ONE} watchers already, which is the most for one peer; use Check"
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        ended = asyncio.get_running_loop().create_future()
        self._watchers[ended] = who
        try:
            said = None
            while True:
                changed = self._changed
                status = self._status.get(request.service, _SERVICE_UNKNOWN)
                if status != said:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    said = status
                elif self._stopped:
                    return
                else:
                    await changed.wait()
        finally:
            del self._watchers[ended]
            ended.set_result(None)

    def _set_all(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        self._status = dict.fromkeys(self._status, status)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
