"""Server reflection (grpc.reflection.v1alpha), loaded when somebody first asks for it.

Its library parses every descriptor in Python: 40 ms of a server's start and 2 MiB that most servers never use (measured). Rejected:
enable_server_reflection, which loads it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

SERVICE_NAME = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name


class Reflection(reflection_pb2_grpc.ServerReflectionServicer):  # type: ignore[misc]  # generated code without annotations
    """Tells of the services called `names`, and of itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = (*names, SERVICE_NAME)
        self._made: Any = None

    async def ServerReflectionInfo(  # noqa: N802  # the contract's name
        self,
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: grpc.aio.ServicerContext[reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse],
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer each request as grpcio-reflection does."""
        if self._made is None:
            self._made = await asyncio.to_thread(_load, self._names)
        async for response in self._made.ServerReflectionInfo(requests, context):
            yield response


def _load(names: Sequence[str]) -> Any:
    from grpc_reflection.v1alpha._async import ReflectionServicer  # noqa: PLC0415 -- why this module exists

    return ReflectionServicer(names)
