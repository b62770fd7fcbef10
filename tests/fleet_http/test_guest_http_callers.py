"""The guests' methods over HTTP: who may call what, and what no caller can do with it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from guest_transport.options import REQUEST_LIMIT_BYTES
from tests.eventually import eventually
from tests.fleet_http.fleet import Fleet, running_fleet
from tests.fleet_http.guest_http import ID, RULES, Guest, bearer, fleet_of, post, send
from tests.http.web import BOUND_SECONDS, Answer, close, connect, get, read_answer
from tests.policy.callers import connected_as, needs_root, rules, secret
from vmm_proxy.app import page_app
from vmm_proxy.pages.app import create_http_app
from vmm_proxy.policy.audit_log import Audit
from vmm_proxy.policy.roles import Grant, Role
from vmm_proxy.services.guest_http import GuestHttp
from vmm_proxy.upstream.limits import HTTP_BODIES


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'admin:{password}'.encode()).decode()}"}


@pytest.mark.parametrize(
    "headers", [bearer("viewer"), basic(secret("viewer")), {"X-Admin-Token": secret("viewer")}], ids=["bearer", "basic", "admin"]
)
async def test_a_token_is_taken_in_each_documented_form_and_gives_its_role(headers: Mapping[str, str]) -> None:
    guest = Guest()
    async with fleet_of(guest, loopback=None) as fleet:
        assert (await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=headers)).status == 200
        answer = await post(fleet, "/guest/Shutdown", ID, headers)
        assert (answer.status, guest.shutdowns) == (403, 0)
        assert b"this call needs the role operator" in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("nobody"),
        {"Authorization": f"Digest {secret('viewer')}"},
        {"X-Admin-Token": ""},
        {"X-Admin-Token": secret("viewer"), **bearer("viewer")},
        {"Authorization": f"Bearer {secret('viewer')}", "authorization": f"Bearer {secret('viewer')}"},
        {"X-Admin-Token": f"{secret('viewer')}\xe9"},
    ],
)
async def test_without_one_good_token_it_is_401_with_a_challenge(
    headers: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet_of(Guest(), loopback=None) as fleet:
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert json.loads(answer.body)["status"] == "UNAUTHENTICATED"
        assert fleet.parts.calls.rejected["credentials"] == 1
    assert secret("viewer") not in caplog.text
    assert secret("nobody") not in caplog.text


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_whoever_comes_through_a_reverse_proxy_is_nobody_of_this_machine(name: str) -> None:
    async with fleet_of(Guest(), loopback=Role.OPERATOR) as fleet:
        assert (await get(fleet.address, "/guest/Info?id=vm-a", headers={name: "x"})).status == 401
        assert (await get(fleet.address, "/guest/Info?id=vm-a", headers={name: "x"} | bearer("viewer"))).status == 200


async def test_a_token_for_some_guests_reaches_those_and_no_others() -> None:
    async with fleet_of(Guest(), loopback=None) as fleet:
        await fleet.add("vm-b", Guest(), labels={"tenant": "blue"})
        assert (await get(fleet.address, "/guest/Info?id=vm-b", headers=bearer("blue"))).status == 200
        answer = await get(fleet.address, "/guest/Info?id=vm-a", headers=bearer("blue"))
        assert (answer.status, json.loads(answer.body)["error"]) == (404, "guest vm-a: not known to this proxy")


async def test_where_pages_need_a_token_these_calls_need_one_of_their_own_kind() -> None:
    async with fleet_of(Guest(), need_token=True) as fleet:
        assert (await get(fleet.address, "/guest/Info?id=vm-a")).status == 401
        assert (await get(fleet.address, "/guest/Info?id=vm-a", headers=bearer("viewer"))).status == 200
        assert (await get(fleet.address, "/metrics")).status == 401


async def test_without_the_setting_nothing_is_there() -> None:
    async with running_fleet(access=RULES) as fleet:
        await fleet.add("vm-a", Guest())
        assert (await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=bearer("operator"))).status == 404
        assert (await post(fleet, "/guest/Shutdown", ID, bearer("operator"))).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_what_a_web_page_sends_is_refused_with_whatever_its_browser_adds(headers: Mapping[str, str]) -> None:
    guest = Guest()
    async with fleet_of(guest, loopback=Role.OPERATOR) as fleet:
        for more in ({}, basic(secret("operator"))):
            answer = await post(fleet, "/guest/Shutdown", ID, {**headers, **more, "Content-Type": "text/plain"})
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers
        assert (await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=headers)).status == 403
        assert guest.shutdowns == 0
        assert (await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers={"Sec-Fetch-Site": "none"})).status == 200


async def test_a_name_that_was_made_to_resolve_to_this_port_reads_nothing() -> None:
    async with fleet_of(Guest()) as fleet:
        assert (await get(fleet.address, "/guest/GpuInfo?id=vm-a", host="evil.example")).status == 421


async def test_shutdown_stands_in_the_audit_log_as_asked_and_done_and_as_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    audit = Audit(file, lambda: 0.0)
    await asyncio.to_thread(audit.open)
    async with fleet_of(Guest(), loopback=None, audit=audit) as fleet:
        assert (await post(fleet, "/guest/Shutdown", ID, bearer("viewer"))).status == 403
        assert (await post(fleet, "/guest/Shutdown", ID, bearer("operator"))).status == 200
        assert (await post(fleet, "/guest/Shutdown", b"\x0a\x01b", bearer("operator"))).status == 404
        await eventually(lambda: file.read_text().count("\n") == 5)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["event"], line["who"], line["guest"], line.get("outcome")) for line in lines] == [
        ("refused", "token viewer", "vm-a", "PERMISSION_DENIED"),
        ("asked", "token operator", "vm-a", None),
        ("done", "token operator", "vm-a", "OK"),
        ("asked", "token operator", "b", None),
        ("done", "token operator", "b", "NOT_FOUND"),
    ]
    assert {line["method"] for line in lines} == {"/guest_api.ProxiedGuestApi/Shutdown"}


async def test_a_body_that_is_too_long_is_413_and_is_not_kept() -> None:
    async with fleet_of(Guest()) as fleet:
        head = f"POST /guest/GpuInfo HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10 * 2**20}\r\n\r\n".encode()
        answer = await send(fleet, head + bytes(REQUEST_LIMIT_BYTES + 1))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        chunk = b"%x\r\n%s\r\n" % (REQUEST_LIMIT_BYTES + 1, bytes(REQUEST_LIMIT_BYTES + 1))
        head = b"POST /guest/GpuInfo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await send(fleet, head + chunk)).status == 413


async def test_a_body_that_does_not_come_is_408_and_takes_no_place() -> None:
    async with fleet_of(Guest()) as fleet:
        app = GuestHttp(
            create_http_app(fleet.pages), fleet.parts.pass_on, fleet.parts.http_admission, anonymous=True, body_seconds=0.1
        )
        server = PageServer()
        await server.start(app, TcpAddress("127.0.0.1", 0))
        try:
            [address] = server.addresses
            assert isinstance(address, TcpAddress)
            reader, writer = await connect(address)
            writer.write(b"POST /guest/GpuInfo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n\x0a")
            answer = await read_answer(reader)
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            await close(writer)
        finally:
            await server.stop()


async def test_bodies_that_do_not_come_keep_no_scraper_and_no_get_out() -> None:
    async with fleet_of(Guest()) as fleet:
        writers = []
        for _ in range(HTTP_BODIES):
            reader, writer = await connect(fleet.address)
            writers.append(writer)
            writer.write(b"POST /guest/Info HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\n")
            # The server asks for a body when it begins to read one.
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await post(fleet, "/guest/Info", ID)
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert (await get(fleet.address, "/guest/Info?id=vm-a")).status == 200
        assert (await get(fleet.address, "/sd")).status == 200
        for writer in writers:
            await close(writer)


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nContent-Length: 0\r\n\r\n\x0a\x04vm-a",
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length : 6\r\n\r\n\x0a\x04vm-a",
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\n Content-Length: 6\r\n\r\n\x0a\x04vm-a",
        b"POST /guest/Shutdown\r\nHost: evil HTTP/1.1\r\n\r\n",
        b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nContent-Length: 6\r\n\r\n\x0a\x04vm-a",
    ],
)
async def test_a_request_whose_end_two_servers_would_see_differently_calls_nothing(raw: bytes) -> None:
    guest = Guest()
    async with fleet_of(guest, loopback=Role.OPERATOR) as fleet:
        hidden = b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n\x0a\x04vm-a"
        reader, writer = await connect(fleet.address)
        writer.write(raw + hidden)
        async with asyncio.timeout(BOUND_SECONDS):
            said = await reader.read()
        await close(writer)
        assert said.startswith(b"HTTP/1.1 4")
        assert said.count(b"HTTP/1.1") == 1
        assert guest.shutdowns == 0


@asynccontextmanager
async def served_at(fleet: Fleet, listen: Address, setup_listen: Address | None = None) -> AsyncIterator[PageServer]:
    """The same proxy's HTTP side at another address, set up as for `setup_listen`."""
    setup = msgspec.structs.replace(fleet.pages.setup, listen=setup_listen or listen)
    server = PageServer()
    await server.start(page_app(replace(fleet.pages, setup=setup), fleet.parts), listen)
    try:
        yield server
    finally:
        await server.stop()


async def over(connection: socket.socket, raw: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        writer.write(raw)
        return await read_answer(reader)
    finally:
        await close(writer)


SHUTDOWN = b"POST /guest/Shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n" + ID


async def test_on_a_unix_socket_the_proxys_own_user_may_do_everything_without_a_token() -> None:
    guest = Guest()
    async with fleet_of(guest, loopback=None) as fleet:
        path = str(fleet.folder / "http")
        async with served_at(fleet, UnixAddress(path)):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            assert (await over(connection, SHUTDOWN)).status == 200
    assert guest.shutdowns == 1


@needs_root
async def test_on_a_unix_socket_each_user_has_the_role_that_grpc_gives_it() -> None:
    guest = Guest()
    grants = {5001: (Grant(Role.OPERATOR),), 5002: (Grant(Role.VIEWER),)}
    async with fleet_of(guest, access=rules(users=grants)) as fleet:
        fleet.folder.chmod(0o755)
        path = fleet.folder / "http"
        async with served_at(fleet, UnixAddress(str(path))):
            path.chmod(0o666)
            statuses = [(await over(await connected_as(str(path), uid, uid, []), SHUTDOWN)).status for uid in (5001, 5002, 5003)]
    assert (statuses, guest.shutdowns) == ([200, 403, 403], 1)


async def test_where_http_is_for_the_network_a_caller_from_loopback_may_be_anybody_and_needs_a_token() -> None:
    beyond = TcpAddress("0.0.0.0", 9880)
    async with fleet_of(Guest(), loopback=Role.VIEWER) as fleet, served_at(fleet, TcpAddress("127.0.0.1", 0), beyond) as server:
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        assert (await get(address, "/guest/Info?id=vm-a")).status == 401
        assert (await get(address, "/guest/Info?id=vm-a", headers=bearer("viewer"))).status == 200
