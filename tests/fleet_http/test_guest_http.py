"""The guests' methods over HTTP: every documented form, and how failures are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import grpc
import pytest

from guest_api import guest_api_pb2
from tests.eventually import eventually
from tests.fleet_http.guest_http import CARDS, ID, JSON, Guest, bearer, fleet_of, post
from tests.http.web import close, connect, get, read_answer
from tests.policy.callers import rules, secret
from vmm_proxy.policy.roles import Role
from vmm_proxy.services.guest_http import HTTP_STATUS
from vmm_proxy.upstream.limits import HTTP_CALLS_OF_ONE


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
