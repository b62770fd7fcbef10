"""Who reads slowly: its place is somebody else's when it is needed, and its answer has an end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from guest_transport.addresses import TcpAddress
from guest_transport.http import concurrency
from guest_transport.http.bounded_stream import StreamPlaces
from guest_transport.http.concurrency import RequestLimit
from guest_transport.http.connections import CONNECTION, BoundedConnection, ClientBook, ClientLimits, peer_of
from guest_transport.http.server import PageServer
from tests.eventually import eventually, turns
from tests.http.web import BOUND_SECONDS, get

# More than the kernel keeps for a reader that does not read.
SLICE, SLICES = 256 * 1024, 256


class Large:
    """An app of 64 MiB, or two bytes on /small and /healthz."""

    def __init__(self) -> None:
        # Those whose reader does not read: until then no send() waits.
        self.waiting: list[BoundedConnection] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        connection = scope["state"][CONNECTION]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(SLICES):
            self.waiting.append(connection)
            try:
                await send({"type": "http.response.body", "body": bytes(SLICE), "more_body": True})
            finally:
                self.waiting.remove(connection)
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(limits: ClientLimits, at_once: int) -> AsyncIterator[tuple[TcpAddress, Large]]:
    app, server = Large(), PageServer(limits=limits, requests_at_once=at_once)
    await server.start(app, TcpAddress("127.0.0.1", 0))
    try:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        yield address, app
    finally:
        await server.stop(grace_seconds=0)


async def slow_reader(address: TcpAddress) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (address.host, address.port))
    await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


async def all_wait(app: Large, count: int) -> None:
    await eventually(lambda: len(app.waiting) == count)


async def test_readers_that_hold_every_place_keep_no_scraper_from_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ClientLimits(paused_seconds=0), 4) as (address, app), asyncio.timeout(BOUND_SECONDS):
        with contextlib.ExitStack() as closing:
            for _ in range(4):
                closing.enter_context(await slow_reader(address))
            await all_wait(app, 4)
            assert [(await get(address, "/small")).status for _ in range(6)] == [200] * 6
    assert "127.0.0.1 reads its answer too slowly and is cut: somebody else waits for an answer" in caplog.text


async def test_a_scraper_waits_for_the_place_of_a_reader_who_has_just_begun_to_be_slow() -> None:
    # Long enough for both readers to be there before the first one may be cut.
    async with serving(ClientLimits(paused_seconds=2), 2) as (address, server), asyncio.timeout(BOUND_SECONDS):
        with contextlib.ExitStack() as closing:
            for _ in range(2):
                closing.enter_context(await slow_reader(address))
            await all_wait(server, 2)
            answers = await asyncio.gather(*(get(address, "/small") for _ in range(2)))
            assert [answer.status for answer in answers] == [200, 200]


async def test_readers_that_read_fast_enough_keep_their_place_and_health_is_told_beside_them() -> None:
    async with serving(ClientLimits(paused_seconds=3600), 2) as (address, app), asyncio.timeout(BOUND_SECONDS):
        with contextlib.ExitStack() as closing:
            for _ in range(2):
                closing.enter_context(await slow_reader(address))
            await all_wait(app, 2)
            assert (await get(address, "/small")).status == 503
            assert (await get(address, "/healthz")).status == 200
            assert len(app.waiting) == 2


async def test_an_answer_that_is_read_bit_by_bit_is_cut_and_one_that_is_read_fast_enough_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ClientLimits()
    async with serving(limits, 1) as (address, app), asyncio.timeout(BOUND_SECONDS):
        with await slow_reader(address) as client:
            await all_wait(app, 1)
            [connection] = app.waiting
            left = connection.transport.get_write_buffer_size()
            # What the window's timer calls, with what was left at the begin of the window.
            connection.judge_writing(left + int(limits.least_bytes_per_second * limits.stall_seconds))
            assert not connection.transport.is_closing()
            connection.judge_writing(left + 1)
            assert connection.transport.is_closing()
            with pytest.raises(ConnectionResetError):  # noqa: PT012 -- it shows at whichever read comes after it
                while await asyncio.get_running_loop().sock_recv(client, 64 * 1024):
                    pass
    assert "127.0.0.1 reads its answer too slowly and is cut: less than 16384 bytes a second" in caplog.text


class Hanging:
    """An app whose answers come when they are let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.let.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def ask(limit: RequestLimit, client: tuple[str, int] | None, statuses: list[int]) -> None:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await limit({"type": "http", "method": "GET", "path": "/", "headers": [], "client": client}, receive, send)


async def test_a_peer_beyond_this_machine_has_half_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "WAIT_SECONDS", 0.01)
    app = Hanging()
    limit, statuses = RequestLimit(app, 4), list[int]()
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        for port in (1, 2):
            group.create_task(ask(limit, ("192.0.2.1", port), statuses))
        await turns()
        await ask(limit, ("192.0.2.1", 3), statuses)
        assert statuses == [503]
        group.create_task(ask(limit, ("192.0.2.2", 1), statuses))
        group.create_task(ask(limit, None, statuses))
        await turns()
        assert limit.in_progress == 4
        app.let.set()
    assert statuses == [503, 200, 200, 200, 200]
    assert limit.in_progress == 0


async def test_a_peer_that_waits_for_its_share_keeps_nobody_else_waiting() -> None:
    app = Hanging()
    limit, statuses = RequestLimit(app, 4), list[int]()
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        # Two are answered, two wait, and the fifth is refused: a peer has half of those who wait, too.
        for port in range(4):
            group.create_task(ask(limit, ("192.0.2.1", port), statuses))
        await turns()
        await ask(limit, ("192.0.2.1", 4), statuses)
        assert statuses == [503]
        group.create_task(ask(limit, ("192.0.2.2", 1), statuses))
        group.create_task(ask(limit, None, statuses))
        await turns()
        assert limit.in_progress == 4
        app.let.set()
    assert statuses == [503, *6 * [200]]
    assert limit.in_progress == 0


async def test_a_place_that_was_given_to_a_request_just_cancelled_is_given_back() -> None:
    app = Hanging()
    limit, statuses = RequestLimit(app, 1), list[int]()
    async with asyncio.timeout(BOUND_SECONDS):
        answered = asyncio.create_task(ask(limit, None, statuses))
        await turns()
        left = asyncio.create_task(ask(limit, None, statuses))
        await turns()
        app.let.set()
        answered.add_done_callback(lambda _: left.cancel())
        await asyncio.wait([answered, left])
        await ask(limit, None, statuses)
    assert limit.in_progress == 0


@pytest.mark.parametrize(
    ("client", "peer"),
    [
        (None, None), ("127.0.0.1", None), ("127.8.0.1", None), ("::1", None), ("::ffff:127.0.0.1", None), ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64"),
    ],
)  # fmt: skip
def test_a_peer_is_an_address_or_all_users_of_this_machine(client: str | None, peer: str | None) -> None:
    assert peer_of(None if client is None else (client, 1)) == peer


class _Connection:
    """As far as the book looks at one."""

    def __init__(self, peer: str | None) -> None:
        self.peer, self.dropped = peer, False

    def drop(self) -> None:
        self.dropped = True


def test_a_peer_with_half_of_the_connections_makes_room_among_its_own() -> None:
    book = ClientBook(ClientLimits(connections=4))
    held = [_Connection("192.0.2.2"), *(_Connection("192.0.2.1") for _ in range(3))]
    for each in held:
        book.waiting[each] = None  # type: ignore[index]
        book.of_peer[each.peer] += 1
    assert book.admit(held[-1], 4)  # type: ignore[arg-type]
    assert [each.dropped for each in held] == [False, True, False, False]


def test_a_peer_beyond_this_machine_has_half_of_the_streams_and_gets_them_back() -> None:
    places, far = StreamPlaces(4, "dashboards"), Request({"type": "http", "client": ("192.0.2.1", 1)})
    given = [places.take(far) for _ in range(2)]
    with pytest.raises(HTTPException, match="2 dashboards are open at your address"):
        places.take(far)
    here = [places.take(Request({"type": "http", "client": ("127.0.0.1", 1)})) for _ in range(2)]
    with pytest.raises(HTTPException, match="4 dashboards are open"):
        places.take(Request({"type": "http", "client": None}))
    for give_back in [*given, *here]:
        give_back()
    places.take(far)
