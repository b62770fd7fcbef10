"""The guests' methods over HTTP: every documented form, who may call what, how failures are told, and what no caller can do with it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from guest_api import guest_api_pb2
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from guest_transport.options import REQUEST_LIMIT_BYTES
from tests.eventually import eventually
from tests.fleet_http.fleet import Answers, Context, Fleet, running_fleet
from tests.http.web import BOUND_SECONDS, Answer, close, connect, get, read_answer
from tests.policy.callers import connected_as, needs_root, rules, secret, token
from vmm_proxy.app import page_app
from vmm_proxy.pages.app import create_http_app
from vmm_proxy.policy.audit_log import Audit
from vmm_proxy.policy.roles import Grant, Role
from vmm_proxy.services.guest_http import HTTP_STATUS, GuestHttp
from vmm_proxy.upstream.limits import HTTP_CALLS_OF_ONE

CARDS = guest_api_pb2.GpuInfoResponse(
    gpus=[guest_api_pb2.GpuDevice(uuid="GPU-1", utilization_gpu=0, memory_total_bytes=2**63 + 1, errors=["power: \x1b\r\n<b>"])],
    sample_age_ms=7,
    pci_devices=1,
)
RULES = rules(
    tokens=(
        token("viewer", Role.VIEWER),
        token("operator", Role.OPERATOR),
        token("blue", Role.VIEWER, {"tenant": "blue"}),
    )
)


class Guest(Answers):
    """A guest whose methods can be made to fail."""

    failure: tuple[grpc.StatusCode, str] | None = None
    shutdowns = 0

    async def GpuInfo(self, request: Any, context: Context) -> guest_api_pb2.GpuInfoResponse:
        if self.failure:
            await context.abort(*self.failure)
        context.set_trailing_metadata(
            [(key, value) for key, value in context.invocation_metadata() or () if key == "x-request-id"]
        )
        return await super().GpuInfo(request, context)

    async def Shutdown(self, request: Any, context: Context) -> Any:
        self.shutdowns += 1
        return await super().Shutdown(request, context)


@asynccontextmanager
async def fleet_of(guest: Guest, *, loopback: Role | None = Role.VIEWER, **setup: Any) -> AsyncIterator[Fleet]:
    setup.setdefault("access", rules(tokens=RULES.tokens, loopback=loopback))
    async with running_fleet(guest_api=True, **setup) as fleet:
        await fleet.add("vm-a", guest, labels={"tenant": "red"})
        yield fleet


async def send(fleet: Fleet, raw: bytes) -> Answer:
    """The answer to bytes as they are."""
    async with asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(fleet.address)
        try:
            writer.write(raw)
            return await read_answer(reader)
        finally:
            await close(writer)


async def post(fleet: Fleet, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return await send(fleet, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(name)}"}


ID = guest_api_pb2.Id(id="vm-a").SerializeToString()
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", ["/guest/GpuInfo", "/guest/ProxiedGuestApi.GpuInfo"])
@pytest.mark.parametrize("form", ["GET", "json", "?json", "protobuf"])
async def test_every_documented_form_of_a_request_is_answered_in_its_own_form(path: str, form: str) -> None:
    async with fleet_of(Guest(gpus=CARDS)) as fleet:
        match form:
            case "GET":
                answer = await get(fleet.address, f"{path}?id=vm-a")
            case "json":
                answer = await post(fleet, path, b'{"id": "vm-a", "extra": [1]}', JSON)
            case "?json":
                answer = await post(fleet, f"{path}?json", b'{"id": "vm-a"}')
            case _:
                answer = await post(fleet, path, ID, {"Content-Type": "application/octet-stream"})
    assert answer.status == 200
    if form == "protobuf":
        assert answer.headers["content-type"] == "application/octet-stream"
        assert guest_api_pb2.GpuInfoResponse.FromString(answer.body) == CARDS
        return
    assert answer.headers["content-type"] == "application/json"
    told = json.loads(answer.body)
    assert list(told) == ["gpus", "error", "cc_ready", "cc_enabled", "sample_age_ms"]
    assert (told["cc_ready"], told["sample_age_ms"]) == (None, 7)
    card = told["gpus"][0]
    assert (card["utilization_gpu"], card["utilization_memory"], card["memory_total_bytes"]) == (0, None, 2**63 + 1)


async def test_a_guest_without_cards_is_told_as_dstack_tells_it() -> None:
    async with fleet_of(Guest()) as fleet:
        assert json.loads((await get(fleet.address, "/guest/GpuInfo?id=vm-a")).body) == {
            "gpus": [],
            "error": "",
            "cc_ready": None,
            "cc_enabled": None,
            "sample_age_ms": None,
        }
        assert (await post(fleet, "/guest/GpuInfo", ID)).body == b""


async def test_fields_that_are_not_dstacks_are_told_to_who_asks_for_all() -> None:
    async with fleet_of(Guest(gpus=CARDS)) as fleet:
        assert json.loads((await get(fleet.address, "/guest/GpuInfo?id=vm-a&fields=all")).body)["pci_devices"] == 1


@pytest.mark.parametrize(
    ("body", "headers", "path", "told"),
    [
        (b"{", JSON, "/guest/GpuInfo", "the body is not JSON"),
        (b"[]", JSON, "/guest/GpuInfo", "the body must be a JSON object"),
        (b"[" * 60_000, JSON, "/guest/GpuInfo", "the body is not JSON"),
        (b'{"id": 5}', JSON, "/guest/GpuInfo", "id: must be a string"),
        (b'{"id": "\\ud800"}', JSON, "/guest/GpuInfo", "id: must be Unicode text"),
        (b"", JSON, "/guest/GpuInfo", "id: must be"),
        (b"\x0a\x09vm-a", {}, "/guest/GpuInfo?id=vm-a", "the body is no protobuf message of this method"),
        (b'{"id": "a/b"}', JSON, "/guest/GpuInfo", "id: must be"),
        (b'{"id": "vm-a\\r\\nset-cookie: a=b"}', JSON, "/guest/GpuInfo", "id: must be"),
    ],
)
async def test_a_request_that_names_no_guest_is_400_and_says_why(
    body: bytes, headers: Mapping[str, str], path: str, told: str
) -> None:
    async with fleet_of(Guest()) as fleet:
        answer = await post(fleet, path, body, headers)
        assert answer.status == 400
        assert told.encode() in answer.body
        assert "set-cookie" not in answer.headers
        assert len(answer.body) < 2500
        assert fleet.parts.calls.rejected["invalid"] == 1


async def test_an_error_in_protobuf_has_its_text_in_field_1_and_one_in_json_its_status_too() -> None:
    async with fleet_of(Guest()) as fleet:
        answer = await post(fleet, "/guest/GpuInfo", b"\x0a\x01b")
        assert (answer.status, guest_api_pb2.Id.FromString(answer.body).id) == (404, "guest b: not known to this proxy")
        answer = await get(fleet.address, "/guest/GpuInfo?id=b")
        assert (answer.status, json.loads(answer.body)) == (
            404,
            {"error": "guest b: not known to this proxy", "status": "NOT_FOUND"},
        )


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_each_status_of_a_guest_has_the_one_of_http_that_code_proto_names(code: grpc.StatusCode) -> None:
    guest = Guest()
    guest.failure = (code, "no\r\ncards")
    async with fleet_of(guest) as fleet:
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a")
        # To a caller CANCELLED means that it cancelled the call itself.
        told = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.CANCELLED else code
        assert answer.status == HTTP_STATUS[told]
        assert json.loads(answer.body) == {"error": "guest vm-a: no  cards", "status": told.name}
        assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/guest/", "/guest/Nothing", "/guest/GuestApi.GpuInfo", "/guest/GpuInfo/", "/guest/gpuinfo", "/guest/a/b"]
)
async def test_an_unknown_method_is_404_and_nothing_of_it_is_repeated(path: str) -> None:
    async with fleet_of(Guest()) as fleet:
        answer = await get(fleet.address, f"{path}?id=vm-a")
        assert answer.status == 404
        assert json.loads(answer.body)["status"] == "UNIMPLEMENTED"
        assert "Nothing" not in answer.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_shutdown_answers_post_only(method: str) -> None:
    guest = Guest()
    async with fleet_of(guest, loopback=Role.OPERATOR) as fleet:
        answer = await get(fleet.address, "/guest/Shutdown?id=vm-a", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert guest.shutdowns == 0
        assert (await post(fleet, "/guest/Shutdown", ID)).status == 200
        assert guest.shutdowns == 1
        assert (await post(fleet, "/guest/Shutdown", b'{"id": "vm-a"}', JSON)).body == b"null"


async def test_methods_that_read_answer_get_and_post_only() -> None:
    async with fleet_of(Guest()) as fleet:
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a", method="HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


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


async def test_shutdown_stands_in_the_audit_log_as_asked_and_done_and_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit"
    async with fleet_of(Guest(), loopback=None) as fleet:
        audit = Audit(file, lambda: 0.0)
        await asyncio.to_thread(audit.open)
        monkeypatch.setattr(fleet.parts.http_admission.trail, "_audit", audit)
        assert (await post(fleet, "/guest/Shutdown", ID, bearer("viewer"))).status == 403
        assert (await post(fleet, "/guest/Shutdown", ID, bearer("operator"))).status == 200
        assert (await post(fleet, "/guest/Shutdown", b"\x0a\x01b", bearer("operator"))).status == 404
        await audit.close()
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


async def test_requests_on_one_connection_are_answered_in_turn_each_for_itself() -> None:
    async with fleet_of(Guest(gpus=CARDS), loopback=None) as fleet:
        first = f"GET /guest/Info?id=vm-a HTTP/1.1\r\nHost: localhost\r\nX-Admin-Token: {secret('viewer')}\r\n\r\n".encode()
        second = b"GET /guest/GpuInfo?id=vm-a HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await connect(fleet.address)
        writer.write(first + second)
        assert (await read_answer(reader)).status == 200
        assert (await read_answer(reader)).status == 401, "a token counts for the request that shows it"
        await close(writer)


async def test_only_metadata_of_the_list_travels_and_none_of_it_can_break_a_line() -> None:
    async with fleet_of(Guest()) as fleet:
        headers = {"X-Request-Id": "7", "X-Other": "1", "Cookie": "a=b"}
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=headers)
        assert (answer.status, answer.headers["x-request-id"]) == (200, "7")
        for bad in ("\xe9", "x" * 300):
            answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers={"X-Request-Id": bad})
            assert (answer.status, json.loads(answer.body)["status"]) == (400, "INVALID_ARGUMENT")


async def test_a_kept_answer_is_given_with_its_age_to_who_takes_one() -> None:
    guest = Guest(gpus=CARDS)
    async with fleet_of(guest) as fleet:
        await get(fleet.address, "/guest/GpuInfo?id=vm-a")
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a", headers={"Cache-Control": "max-age=60"})
        assert (answer.status, guest.asked["GpuInfo"]) == (200, 1)
        assert answer.headers["age"] == "1"


async def test_a_caller_who_leaves_leaves_no_call_behind() -> None:
    guest = Guest(silent={"GpuInfo"})
    async with fleet_of(guest) as fleet:
        _, writer = await connect(fleet.address)
        writer.write(b"GET /guest/GpuInfo?id=vm-a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: fleet.parts.pool.upstream("vm-a").callers == 1)
        await close(writer)
        await eventually(lambda: fleet.parts.pool.upstream("vm-a").callers == 0)
        assert fleet.parts.calls.in_flight == 0


async def test_whoever_loses_the_token_while_a_guest_is_asked_is_answered_no_more() -> None:
    guest = Guest(silent={"GpuInfo"})
    async with fleet_of(guest, loopback=None) as fleet:
        asking = asyncio.create_task(get(fleet.address, "/guest/GpuInfo?id=vm-a", headers=bearer("viewer")))
        await eventually(lambda: "GpuInfo" in guest.asked)
        fleet.parts.access.replace(rules())
        assert (await asking).status == 401


async def test_callers_of_guests_that_hang_keep_no_scraper_out() -> None:
    guest = Guest(silent={"Info", "GpuInfo"})
    async with fleet_of(guest, loopback=None) as fleet:
        writers = []
        for _ in range(HTTP_CALLS_OF_ONE):
            _, writer = await connect(fleet.address)
            writer.write(
                f"GET /guest/GpuInfo?id=vm-a HTTP/1.1\r\nHost: localhost\r\nX-Admin-Token: {secret('viewer')}\r\n\r\n".encode()
            )
            writers.append(writer)
        await eventually(lambda: fleet.parts.pool.upstream("vm-a").callers == HTTP_CALLS_OF_ONE)
        answer = await get(fleet.address, "/guest/Info?id=vm-a", headers=bearer("viewer"))
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert json.loads(answer.body)["status"] == "RESOURCE_EXHAUSTED"
        assert (await get(fleet.address, "/sd")).status == 200
        for writer in writers:
            await close(writer)


async def test_a_stopped_guest_is_told_at_once() -> None:
    async with fleet_of(Guest()) as fleet:
        await fleet.stop("vm-a")
        answer = await get(fleet.address, "/guest/GpuInfo?id=vm-a")
        assert (answer.status, json.loads(answer.body)["status"]) == (503, "UNAVAILABLE")


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
