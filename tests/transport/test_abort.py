"""A call that ends with a status leaves nothing behind that needs a full collection."""

from __future__ import annotations

import gc
from typing import Any

import grpc

from guest_transport.abort import abort
from tests.eventually import turns

CALLS = 100


async def test_a_refused_call_leaves_no_frames_and_no_context_behind() -> None:
    async def refused(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return await abort(context, grpc.StatusCode.NOT_FOUND, "no such guest", (("hint", "none"),))

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(refused)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/a.B/C")

        async def fail() -> grpc.aio.AioRpcError:
            try:
                await call(b"")
            except grpc.aio.AioRpcError as error:
                return error
            raise AssertionError("the call succeeded")

        error = await fail()
        assert (error.code(), error.details(), dict(error.trailing_metadata() or ())["hint"]) == (
            grpc.StatusCode.NOT_FOUND,
            "no such guest",
            "none",
        )
        gc.collect()
        gc.disable()
        try:
            for _ in range(CALLS):
                await fail()
            await turns()
            left = sum(type(each).__name__ in {"_ServicerContext", "RPCState"} for each in gc.get_objects())
        finally:
            gc.enable()
    await server.stop(None)
    assert left < CALLS / 10
