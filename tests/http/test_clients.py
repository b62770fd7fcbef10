"""Many, slow, idle and broken clients: none keeps another from its answer, and the server starts and stops as an operator expects."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest

from guest_service.http.server import HttpServer
from guest_transport.addresses import TcpAddress, UnixAddress, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.http import concurrency
from guest_transport.http.connections import ClientLimits
from tests.eventually import eventually, turns
from tests.http.guests import Engine, Guest, containers, served
from tests.http.web import BOUND_SECONDS, close, connect, get, read_answer, read_chunk, read_head, request


async def test_200_half_open_requests_leave_a_scrape_its_answer_and_are_closed() -> None:
    limits = ClientLimits(request_seconds=0.5)
    async with served(Guest(), limits=limits) as address:
        clients = [await connect(address) for _ in range(200)]
        for _, writer in clients:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: gue")
        started = time.monotonic()
        assert (await get(address, "/metrics")).status == 200
        assert time.monotonic() - started < 1
        async with asyncio.timeout(BOUND_SECONDS):
            ends = await asyncio.gather(*(reader.read() for reader, _ in clients), return_exceptions=True)
        assert all(end == b"" or isinstance(end, ConnectionResetError) for end in ends)
        for _, writer in clients:
            await close(writer)


async def test_a_client_that_drips_its_header_is_dropped_at_the_same_moment() -> None:
    async with served(Guest(), limits=ClientLimits(request_seconds=0.3)) as address:
        reader, writer = await connect(address)
        dropped = asyncio.ensure_future(reader.read())
        for byte in request("/healthz")[:-1]:
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait({dropped}, timeout=0.05)
            if done:
                break
        assert dropped.done()
        await asyncio.gather(dropped, return_exceptions=True)
        await close(writer)


async def test_a_client_that_starts_a_second_request_and_stops_is_dropped_too() -> None:
    async with served(Guest(), limits=ClientLimits(request_seconds=0.2)) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        writer.write(request("/healthz"))
        assert (await read_answer(reader)).status == 200
        writer.write(b"GET /heal")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await close(writer)


async def test_an_idle_connection_is_closed_and_a_scraper_keeps_its_own_meanwhile() -> None:
    async with served(Guest(), limits=ClientLimits(idle_seconds=1)) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        for _ in range(3):
            writer.write(request("/healthz"))
            assert (await read_answer(reader)).body == b"ok\n"
        assert await reader.read() == b""
        await close(writer)


async def test_a_client_that_never_reads_its_answers_is_dropped() -> None:
    async with served(Guest(), limits=ClientLimits(stall_seconds=0.3)) as address, asyncio.timeout(BOUND_SECONDS):
        _, writer = await connect(address)
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        # Each answer is some 12 KB; 4000 of them fill every buffer on the way.
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012 -- the drop shows at whichever write comes after it
            while True:
                writer.write(request("/") * 20)
                await writer.drain()
                await turns()
        await close(writer)


async def test_with_more_connections_than_allowed_who_waits_longest_goes_and_the_newcomer_is_served() -> None:
    async with served(Guest(), limits=ClientLimits(connections=3)) as address, asyncio.timeout(BOUND_SECONDS):
        clients = [await connect(address) for _ in range(3)]
        assert (await get(address, "/healthz")).status == 200
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await clients[0][0].readexactly(1)
        clients[2][1].write(request("/healthz"))
        assert (await read_answer(clients[2][0])).status == 200
        for _, writer in clients:
            await close(writer)


async def test_requests_over_the_limit_wait_a_while_then_get_503_and_a_place_that_is_free_again_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest = Guest()
    guest.system.hangs = True
    async with served(guest, requests_at_once=2) as address, asyncio.timeout(BOUND_SECONDS):
        held = [await connect(address) for _ in range(2)]
        for _, writer in held:
            writer.write(request("/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "1"}))
            await writer.drain()
        await eventually(lambda: guest.system.reads != 0 and len(guest.gpus.callers) >= 2)
        with monkeypatch.context() as patched:
            patched.setattr(concurrency, "WAIT_SECONDS", 0.1)
            refused = await get(address, "/assets/look.css")
        assert refused.status == 503
        assert (await get(address, "/healthz")).status == 200, "a busy server is not a dead one"
        assert refused.headers["retry-after"] == "1"
        assert (await get(address, "/assets/look.css")).status == 200, "it waits for the pages in progress"
        for reader, writer in held:
            assert (await read_answer(reader)).status == 200
            await close(writer)
        assert (await get(address, "/assets/look.css")).status == 200


@pytest.mark.parametrize(
    "nonsense",
    [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
     b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 70_000],
)  # fmt: skip
async def test_what_is_no_request_ends_its_own_connection_only(nonsense: bytes) -> None:
    async with served(Guest()) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1 400 " in await reader.read()
        await close(writer)
        assert (await get(address, "/healthz")).status == 200


async def test_a_request_with_two_lengths_is_refused_and_what_follows_it_is_not_read() -> None:
    async with served(Guest()) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        smuggled = b"0\r\n\r\n" + request("/healthz")
        writer.write(
            request("/healthz", headers={"Content-Length": str(len(smuggled)), "Transfer-Encoding": "chunked"}) + smuggled
        )
        answer = await read_answer(reader)
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await reader.read() == b""
        await close(writer)


async def test_no_answer_sends_a_client_to_the_host_that_it_named() -> None:
    async with served(Guest()) as address:
        answer = await get(address, "/metrics/")
        assert answer.status == 404
        assert "location" not in answer.headers


async def test_only_reading_is_answered_and_unknown_pages_are_not_there() -> None:
    async with served(Guest()) as address:
        assert (await get(address, "/nothing")).status == 404
        assert (await get(address, "/assets/../live.html")).status == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await get(address, "/", method=method)).status == 405
        head = await get(address, "/", method="HEAD")
        assert head.status == 200
        assert int(head.headers["content-length"]) > 1000


async def test_every_answer_forbids_sniffing_framing_and_keeping() -> None:
    async with served(Guest()) as address:
        for path in ("/", "/live", "/metrics", "/healthz", "/nothing"):
            headers = (await get(address, path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
            assert headers["date"].endswith("GMT")
            assert "server" not in headers


async def test_healthz_answers_always_and_readyz_once_an_outcome_is_known() -> None:
    guest = Guest()
    guest.gpus.ready = False
    async with served(guest) as address:
        answers = []
        for guest.gpus.ready in (False, True):
            assert (await get(address, "/healthz")).status == 200
            answers.append((await get(address, "/readyz")).status)
    assert answers == [503, 200]


async def test_a_page_that_breaks_is_500_without_the_cause_and_the_next_one_works() -> None:
    guest = Guest()

    class NoSwitches:
        def __getattr__(self, name: str) -> bool:
            raise RuntimeError("secret cause")

    async with served(guest) as address:
        whole = guest.shown
        guest.shown = NoSwitches()  # type: ignore[assignment] # a bug of ours, played
        answer = await get(address, "/metrics")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert b"Traceback" not in answer.body
        guest.shown = whole
        assert (await get(address, "/metrics")).status == 200


async def test_a_taken_port_is_one_line_with_the_address_and_what_to_do() -> None:
    async with served(Guest()) as address:
        second = HttpServer(Guest().parts())
        with pytest.raises(
            ListenError, match=rf"^127\.0\.0\.1:{address.port}: cannot listen for HTTP: address already in use; .*--http"
        ):
            await second.start(address)
        await second.stop()
        assert (await get(address, "/healthz")).status == 200


async def test_a_vsock_address_is_refused_with_what_is_possible() -> None:
    server = HttpServer(Guest().parts())
    with pytest.raises(ListenError, match="HOST:PORT or unix:/path"):
        await server.start(VsockAddress(2, 80))


async def test_a_unix_socket_is_served_with_its_mode_and_gone_after_stop(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    server = HttpServer(Guest().parts())
    await server.start(UnixAddress(str(path)))
    assert path.stat().st_mode & 0o777 == 0o660
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(request("/metrics"))
    assert (await read_answer(reader)).status == 200
    await close(writer)
    await server.stop()
    assert not path.exists()


async def test_a_socket_that_was_opened_for_us_is_served() -> None:
    held = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(Guest().parts())
    await server.start(held)
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    assert (await get(address, "/healthz")).status == 200
    await server.stop()


async def test_stopping_finishes_what_is_in_progress_ends_log_streams_and_takes_nobody_new() -> None:
    guest = Guest(engine=Engine(containers=containers(1)))
    guest.system.hangs = True
    server = HttpServer(guest.parts())
    await server.start(TcpAddress("127.0.0.1", 0))
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    async with asyncio.timeout(BOUND_SECONDS):
        scrape_reader, scrape = await connect(address)
        scrape.write(request("/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "0.5"}))
        log_reader, log = await connect(address)
        log.write(request("/logs/service-0?follow=1"))
        await read_head(log_reader)
        await read_chunk(log_reader)
        await eventually(lambda: guest.system.reads)
        stopping = asyncio.ensure_future(server.stop(grace_seconds=3))
        assert (await read_answer(scrape_reader)).status == 200
        rest = b""
        while chunk := await read_chunk(log_reader):
            rest += chunk
        await stopping
        assert guest.engine.open_streams == 0
        with pytest.raises(ConnectionRefusedError):
            await connect(address)
        await close(scrape)
        await close(log)


async def test_with_every_connection_busy_it_is_the_newcomer_that_goes() -> None:
    guest = Guest(engine=Engine(containers=containers(1)))
    async with served(guest, limits=ClientLimits(connections=1)) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        writer.write(request(f"/logs/{0:064x}?follow"))
        assert (await read_head(reader))[0] == 200
        assert await read_chunk(reader) == b"first line\n"
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await get(address, "/healthz")
        guest.engine.more.put_nowait(b"still here\n")
        assert await read_chunk(reader) == b"second line\n"
        assert await read_chunk(reader) == b"still here\n"
        await close(writer)
