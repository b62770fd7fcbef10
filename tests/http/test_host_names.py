"""Under which names the pages are answered: those that no stranger can have, and no other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from guest_service.http.server import HttpServer
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from tests.http.guests import Guest
from tests.http.web import close, connect, read_answer, read_head

NAME = os.uname().nodename


async def _said(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def pages(*names: str, app: ASGIApp = _said) -> AsyncIterator[TcpAddress]:
    server = PageServer(host_names=names)
    await server.start(app, TcpAddress("127.0.0.1", 0))
    try:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        yield address
    finally:
        await server.stop()


async def status(address: TcpAddress, request: str) -> int:
    reader, writer = await connect(address)
    try:
        writer.write(request.encode("latin-1"))
        return (await read_head(reader))[0]
    finally:
        await close(writer)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:9880", "192.0.2.7:80", "[::1]", "[::1]:9880", "[2001:db8::7]:1", "[::ffff:192.0.2.1]", "localhost",
        "LOCALHOST:9880", "localhost.", NAME, NAME.upper(), f"{NAME.partition('.')[0]}:9880", "fleet.example", "Fleet.Example.:443",
    ],
)  # fmt: skip
async def test_an_address_this_machine_and_a_configured_name_are_answered(host: str) -> None:
    async with pages("fleet.EXAMPLE") as address:
        assert await status(address, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n") == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9880", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "127.1", "2130706433",
        "0x7f000001", "127.0.0.1@evil.example", "evil.example#127.0.0.1", "127.0.0.1, evil.example", "fleet.example.evil.example",
        "fleet.example..", "", ".", ":9880", "[::1", "::1", "[::1]x", "[127.0.0.1]", "[::1%lo]", "127.0.0.1:9880:1", "localhost:x",
        "loc\u00e4lhost", "\u0661\u0662\u0667.0.0.1".encode().decode("latin-1"), "x" * 300,
    ],
)  # fmt: skip
async def test_a_name_that_anybody_may_have_is_misdirected(host: str) -> None:
    async with pages("fleet.example") as address:
        assert await status(address, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n") == 421


@pytest.mark.parametrize("path", ["/", "/live", "/metrics", "/logs/x", "/assets/look.css", "/healthz", "/readyz", "/nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_no_path_and_no_method_of_the_agent_is_left_out(path: str, method: str) -> None:
    server = HttpServer(Guest().parts())
    await server.start(TcpAddress("127.0.0.1", 0))
    try:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        assert await status(address, f"{method} {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 421
    finally:
        await server.stop()


async def test_a_request_of_http_1_0_needs_no_host() -> None:
    async with pages() as address:
        assert await status(address, "GET / HTTP/1.0\r\n\r\n") == 200
        assert await status(address, "GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n") == 421
        assert await status(address, "GET / HTTP/1.1\r\n\r\n") == 400


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_two_hosts_are_refused_whichever_comes_first(version: str) -> None:
    async with pages() as address:
        for first, second in (("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")):
            assert await status(address, f"GET / HTTP/{version}\r\nHost: {first}\r\nHost: {second}\r\n\r\n") in {400, 421}


async def test_a_host_in_the_request_line_opens_nothing() -> None:
    server = HttpServer(Guest().parts())
    await server.start(TcpAddress("127.0.0.1", 0))
    try:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        assert await status(address, "GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == 404
        assert await status(address, "GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 421
    finally:
        await server.stop()


async def test_the_refusal_says_what_to_set_and_is_bounded() -> None:
    async with pages() as address:
        reader, writer = await connect(address)
        writer.write(f"GET / HTTP/1.1\r\nHost: evil.example{'x' * 5000}\r\n\r\n".encode())
        answer = await read_answer(reader)
        await close(writer)
        assert answer.text.startswith("misdirected: this is not 'evil.examplexxx")
        assert answer.text.endswith("http.host_names\n")
        assert len(answer.text) < 300
        assert answer.headers["content-type"].startswith("text/plain")


async def test_a_unix_socket_asks_for_no_name(tmp_path: Path) -> None:
    server = PageServer()
    await server.start(_said, UnixAddress(f"{tmp_path}/s"))
    try:
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        writer.write(b"GET / HTTP/1.1\r\nHost: whatever\r\n\r\n")
        assert (await read_head(reader))[0] == 200
        await close(writer)
    finally:
        await server.stop()
