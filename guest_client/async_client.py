"""Asynchronous clients of a guest's agent and of the VMM proxy, over one channel each that connects with the first call.

A client belongs to the event loop in which it made its first call. It never retries: only its caller knows whether Shutdown may run twice.
The methods stand in guest_client.methods, inherited because a descriptor needs a class to stand in.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import Self

import grpc

from guest_client.credentials import authorization, channel_credentials
from guest_client.dialing import dial, dialled
from guest_client.errors import CallError, ClientClosedError, call_error
from guest_client.methods import GuestMethods, ProxyMethods, checked_seconds
from guest_client.prepared_call import (
    Ask,
    AsyncCaller,
    Items,
    ItemT,
    Pages,
    ReplyT,
    Stream,
    checked,
    following_token,
    waited_too_long,
)
from guest_transport.addresses import Address
from guest_transport.answer import answer_of
from guest_transport.options import CLIENT_CALLS, CLIENT_REPLY_LIMIT_BYTES, channel_options
from guest_transport.relay.dial import DialTarget
from guest_transport.tls import ClientTls


@functools.cache
def _keep_grpc_running() -> None:
    """Let grpc.aio outlive the last channel of this process.

    grpcio 1.85 ends its poller thread when the last channel is freed, and waits for it in the event loop: 0.2 to 93 ms, measured over 8
    clients opened and closed in turn, against 0.02 ms with this.
    """
    grpc.aio.init_grpc_aio()


class AsyncChannelCaller(AsyncCaller):
    """Makes prepared calls on a channel to `address`; `async with` closes it, and so does close().

    `timeout_seconds` is what a call may take when it names no bound itself. `metadata` goes with every call, and so does
    `token`, as `authorization: Bearer`. With `tls` the channel is TLS, with the files as they are when it opens. Raises
    InvalidAddressError when `address` is none, CredentialsError for a token or TLS that does not fit it.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        timeout_seconds: float | None = None,
        tls: ClientTls | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.address = dialled(address)
        self.default_timeout_seconds = None if timeout_seconds is None else checked_seconds("timeout_seconds", timeout_seconds)
        self._tls = tls
        self._metadata = authorization(self.address, tls, token) + tuple(metadata)
        self._target: DialTarget | None = None
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self._credentials: grpc.ChannelCredentials | None = None
        self._reading = asyncio.Lock()
        self._calls = asyncio.Semaphore(CLIENT_CALLS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled. May be called again."""
        self._closed = True
        channel, self._channel = self._channel, None
        target, self._target = self._target, None
        if channel is not None:
            await channel.close()
        if target is not None:
            await target.close()

    async def call(self, ask: Ask[ReplyT]) -> ReplyT:
        """Make one call; raises a CallError, or ClientClosedError after close()."""
        async with self._place(ask) as seconds:
            method = (await self._open()).unary_unary(
                ask.path,
                request_serializer=type(ask.request).SerializeToString,
                response_deserializer=ask.reply.FromString,
            )
            try:
                reply = await answer_of(method(ask.request, timeout=seconds, metadata=self._metadata + ask.metadata))
            except grpc.RpcError as error:
                raise self._call_error(error, ask) from error
        return checked(ask, reply, self.address)

    @contextlib.asynccontextmanager
    async def _place(self, ask: Ask[ReplyT]) -> AsyncIterator[float | None]:
        """A place among the calls in progress, and what is left of the call's time when it has one."""
        loop = asyncio.get_running_loop()
        deadline = None if ask.timeout_seconds is None else loop.time() + ask.timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self._calls.acquire()
        except TimeoutError:
            raise waited_too_long(ask, self.address) from None
        try:
            yield None if deadline is None else deadline - loop.time()
        finally:
            self._calls.release()

    def iterate(self, items: Items[ItemT]) -> AsyncGenerator[ItemT, None]:
        """Yield the items of a stream or of all pages; closing the generator cancels the call."""
        return self._stream(items) if isinstance(items, Stream) else self._pages(items)

    async def _stream(self, items: Stream[ReplyT, ItemT]) -> AsyncGenerator[ItemT, None]:
        ask = items.ask
        method = (await self._open()).unary_stream(
            ask.path,
            request_serializer=type(ask.request).SerializeToString,
            response_deserializer=ask.reply.FromString,
        )
        call = method(ask.request, timeout=ask.timeout_seconds, metadata=self._metadata + ask.metadata)
        try:
            async for reply in call:
                for item in items.items(checked(ask, reply, self.address)):
                    yield item
        except grpc.RpcError as error:
            raise self._call_error(error, ask) from error
        finally:
            call.cancel()

    async def _pages(self, pages: Pages[ReplyT, ItemT]) -> AsyncGenerator[ItemT, None]:
        token = ""
        while True:
            reply = await self.call(pages.ask(token))
            for item in pages.items(reply):
                yield item
            token = following_token(pages, reply, token, self.address)
            if not token:
                return

    async def _open(self) -> grpc.aio.Channel:
        if self._channel is None and self._tls is not None and not self._closed:
            async with self._reading:
                if self._credentials is None:
                    self._credentials = await asyncio.to_thread(channel_credentials, self._tls)
        # From here on nothing is awaited: two first calls at once open one channel.
        if self._closed:
            raise ClientClosedError(f"the client of {self.address} is closed")
        if self._channel is None:
            _keep_grpc_running()
            options = channel_options(self.address, reply_limit_bytes=CLIENT_REPLY_LIMIT_BYTES)
            self._target = dial(self.address)
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target.grpc_target, options=options)
            else:
                self._channel = grpc.aio.secure_channel(self._target.grpc_target, self._credentials, options=options)
        return self._channel

    def _call_error(self, error: grpc.RpcError, ask: Ask[ReplyT]) -> CallError:
        refusal = self._target.last_refusal if self._target is not None else None
        return call_error(error, method=ask.about, address=str(self.address), refusal=refusal)


class AsyncGuestClient(GuestMethods, AsyncChannelCaller):
    """One guest's agent, asked directly."""


class AsyncProxyClient(ProxyMethods, AsyncChannelCaller):
    """All guests of a host, asked through its VMM proxy."""
