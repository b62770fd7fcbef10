"""Calls that are given up: the callee hears of it, and gRPC's core keeps nothing of them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_transport.answer import CANCEL_IN_CORE, RESPONSE_TASK, answer_of, message_of
from tests.eventually import eventually
from tests.proxy.conftest import sockets

__all__ = ["sockets"]


class _Mallinfo(ctypes.Structure):
    """malloc.h, struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    ]


def held_by_malloc() -> int:
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    return int(mallinfo2().uordblks)


class Silent:
    """A method that never answers, and counts who left."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.left = 0

    async def answer(self, _request: bytes, _context: object) -> bytes:
        self.called.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1
        return b""


@pytest.fixture
async def silent(sockets: Path) -> AsyncIterator[tuple[Silent, grpc.aio.Channel]]:
    method = Silent()
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(method.answer, None, None)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Silent": handler})])
    server.add_insecure_port(f"unix:{sockets}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{sockets}/s", options=[("grpc.default_authority", "localhost")]) as channel:
        yield method, channel
    await server.stop(None)


def _unary(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary("/test/Silent")


def _stream(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream("/test/Silent")


async def _one(channel: grpc.aio.Channel, seconds: float) -> object:
    return await answer_of(_unary(channel)(b"", timeout=seconds))


async def _first_of_many(channel: grpc.aio.Channel, seconds: float) -> object:
    return await message_of(_stream(channel)(b"", timeout=seconds))


WAYS = pytest.mark.parametrize("way", [_one, _first_of_many])
Way = Callable[[grpc.aio.Channel, float], Coroutine[None, None, object]]


async def _given_up(method: Silent, channel: grpc.aio.Channel, way: Way) -> None:
    method.called.clear()
    task = asyncio.create_task(way(channel, 20))
    await method.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@WAYS
async def test_calls_that_are_given_up_leave_nothing_in_grpcs_core(silent: tuple[Silent, grpc.aio.Channel], way: Way) -> None:
    for _ in range(200):
        await _given_up(*silent, way)
    before = held_by_malloc()
    for _ in range(500):
        await _given_up(*silent, way)
    # By the plain way it is 960 bytes a call, 480 KB. A stream's call still leaves 200.
    assert held_by_malloc() - before < (20_000 if way is _one else 130_000)


@WAYS
async def test_who_was_called_hears_that_the_caller_left(silent: tuple[Silent, grpc.aio.Channel], way: Way) -> None:
    method, channel = silent
    await _given_up(method, channel, way)
    await eventually(lambda: method.left > 0)


@WAYS
async def test_a_call_that_misses_its_deadline_fails_as_ever(silent: tuple[Silent, grpc.aio.Channel], way: Way) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as missed:
        await way(silent[1], 0.05)
    assert missed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_members_of_grpc_that_are_used_are_there(silent: tuple[Silent, grpc.aio.Channel]) -> None:
    call = _unary(silent[1])(b"", timeout=0.05)
    assert isinstance(getattr(call, RESPONSE_TASK), asyncio.Task)
    assert callable(getattr(call, CANCEL_IN_CORE))
    with pytest.raises(grpc.aio.AioRpcError):
        await call
