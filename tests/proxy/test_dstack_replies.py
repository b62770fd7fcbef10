"""What a guest with dstack's own agent may answer: every form of a reply, every status, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_transport.options import REPLY_LIMIT_BYTES
from tests.proxy.dstack_replies import CHUNKED_HEAD, REPLIES, body_of, chunked, sends
from tests.proxy.raw_http_guest import Behaviour, Request, always, raw_http_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream.http_connection import HEAD_LIMIT_BYTES, SMALL_PIECES_LIMIT
from vmm_proxy.upstream.reachability import ReachabilityState


@pytest.mark.parametrize(
    "pieces",
    [
        [CHUNKED_HEAD + chunked(REPLIES["GpuInfo"], 3)],
        [bytes([byte]) for byte in CHUNKED_HEAD + chunked(REPLIES["GpuInfo"], 3)],
        [CHUNKED_HEAD, b"%X;a=b\r\n%s\r\n0\r\nlate: 1\r\n\r\n" % (len(REPLIES["GpuInfo"]), REPLIES["GpuInfo"])],
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n%s"
            % (len(REPLIES["GpuInfo"]), REPLIES["GpuInfo"])
        ],
        [b"HTTP/1.0 200 OK\r\nCONTENT-LENGTH:%d\r\n\r\n" % len(REPLIES["GpuInfo"]), REPLIES["GpuInfo"]],
    ],
    ids=["chunked", "byte by byte", "extension and trailer", "100 first", "HTTP/1.0"],
)
async def test_a_reply_may_come_in_every_form_that_says_where_it_ends(proxy: Proxy, sockets: Path, pieces: list[bytes]) -> None:
    async with raw_http_guest(str(sockets / "g"), sends(*pieces)) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(2):
            assert (await proxy.gpu_info("vm1")).sample_age_ms == 7


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("400 Bad Request", grpc.StatusCode.INTERNAL),
        ("401 Unauthorized", grpc.StatusCode.UNAUTHENTICATED),
        ("403 Forbidden", grpc.StatusCode.PERMISSION_DENIED),
        ("404 Not Found", grpc.StatusCode.UNIMPLEMENTED),
        ("413 Content Too Large", grpc.StatusCode.UNKNOWN),
        ("429 Too Many Requests", grpc.StatusCode.UNAVAILABLE),
        ("500 Internal Server Error", grpc.StatusCode.UNKNOWN),
        ("502 Bad Gateway", grpc.StatusCode.UNAVAILABLE),
        ("503 Service Unavailable", grpc.StatusCode.UNAVAILABLE),
        ("504 Gateway Timeout", grpc.StatusCode.UNAVAILABLE),
        ("302 Found", grpc.StatusCode.UNKNOWN),
        ("204 No Content", grpc.StatusCode.UNKNOWN),
    ],
)
async def test_each_status_of_http_has_its_status_of_grpc(
    proxy: Proxy, sockets: Path, status: str, code: grpc.StatusCode
) -> None:
    async with raw_http_guest(str(sockets / "g"), sends(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1")
        assert (error.code(), error.details()) == (code, f"guest vm1: it answered with HTTP status {status[:3]}")
        assert proxy.pool.reachability("vm1").state is ReachabilityState.SERVING


@pytest.mark.parametrize(
    ("body", "form", "told"),
    [
        (b"\n\x08no cards", "application/octet-stream", "no cards"),
        (json.dumps({"error": "no\r\ncards"}).encode(), "application/json; charset=utf-8", "no  cards"),
        (b"no cards\n", "text/plain", "no cards "),
        (b"<h1>nginx</h1>", "text/html", "it answered with HTTP status 400"),
        (b'{"error": ["a"]}', "application/json", "it answered with HTTP status 400"),
        (b'{"error": "' + b"a" * 9000, "application/json", "it answered with HTTP status 400"),
        (b"[" * 8000, "application/json", "it answered with HTTP status 400"),
        (b"\n\x09no cards", "application/octet-stream", "it answered with HTTP status 400"),
        (b"x" * 5000, "text/plain", "x" * 1024),
    ],
)
async def test_the_words_of_a_guest_that_fails_are_passed_on_in_one_bounded_line(
    proxy: Proxy, sockets: Path, body: bytes, form: str, told: str
) -> None:
    async def answer(request: Request) -> None:
        await request.answer(body, "400 Bad Request", form)

    async with raw_http_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1")
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, f"guest vm1: {told}")


SILENT, SPOKE = ReachabilityState.UNREACHABLE, ReachabilityState.SERVING


@pytest.mark.parametrize(
    ("answer", "code", "said", "state"),
    [
        (sends(body_of(9) + b"\x08", hang_up=True), "UNAVAILABLE", "the connection was lost during the call", SILENT),
        (sends(CHUNKED_HEAD + b"9\r\nabc", hang_up=True), "UNAVAILABLE", "the connection was lost during the call", SILENT),
        (sends(b"HTTP/1.1 200 OK\r\ncont", hang_up=True), "UNAVAILABLE", "the connection was lost during the call", SILENT),
        (sends(hang_up=True), "UNAVAILABLE", "the connection was lost during the call", SILENT),
        (sends(b"SSH-2.0-OpenSSH_9.2\r\n"), "UNAVAILABLE", "its reply is no HTTP/1.1", SILENT),
        (sends(b"\0\0\x12\4\0\0\0\0\0"), "UNAVAILABLE", "its reply is no HTTP/1.1", SILENT),
        (sends(b"HTTP/2 200\r\n\r\n"), "UNAVAILABLE", "its reply is not valid HTTP/1.1", SILENT),
        (sends(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"), "UNAVAILABLE", "not valid HTTP", SILENT),
        (sends(body_of(-1)), "UNAVAILABLE", "not valid HTTP/1.1", SILENT),
        (sends(b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n"), "UNAVAILABLE", "not valid HTTP/1.1", SILENT),
        (sends(CHUNKED_HEAD + b"zz\r\n"), "UNAVAILABLE", "not valid HTTP/1.1", SILENT),
        (sends(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"), "UNAVAILABLE", "not valid HTTP/1.1", SILENT),
        (sends(b"HTTP/1.1 200 OK\r\n\r\n\x28\x07", hang_up=True), "INTERNAL", "does not say where it ends", SPOKE),
        (sends(body_of(2) + b"\x28\x07\x28"), "INTERNAL", "more than its one reply", SPOKE),
        (sends(2 * (body_of(2) + b"\x28\x07")), "INTERNAL", "more than its one reply", SPOKE),
        (sends(body_of(2) + b"\x0a\x09"), "INTERNAL", "does not decode as guest_api.GpuInfoResponse", SPOKE),
        (sends(body_of(16 * 2**20)), "RESOURCE_EXHAUSTED", "over the size limit", SPOKE),
        (sends(CHUNKED_HEAD + chunked(bytes(REPLY_LIMIT_BYTES + 1), 65536)), "RESOURCE_EXHAUSTED", "over the size limit", SPOKE),
        (
            sends(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * (HEAD_LIMIT_BYTES // 6 + 1)),
            "RESOURCE_EXHAUSTED",
            "the head of its",
            SPOKE,
        ),
        (sends(b"HTTP/1.1 200 OK\r\na: ", b"b" * HEAD_LIMIT_BYTES), "RESOURCE_EXHAUSTED", "the head of its reply", SPOKE),
        (sends(b"HTTP/1.1 100 Continue\r\n\r\n" * (SMALL_PIECES_LIMIT + 1)), "INTERNAL", "in too many pieces", SPOKE),
        (sends(CHUNKED_HEAD + b"1\r\n\0\r\n" * (SMALL_PIECES_LIMIT + 1)), "INTERNAL", "in too many pieces", SPOKE),
    ],
)
async def test_a_reply_that_is_none_fails_with_its_reason(
    proxy: Proxy, sockets: Path, answer: Behaviour, code: str, said: str, state: ReachabilityState
) -> None:
    async with raw_http_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1")
        assert error.code().name == code
        assert said in (error.details() or "")
        assert proxy.pool.reachability("vm1").state is state
        guest.behaviour = always(REPLIES)
        assert (await proxy.gpu_info("vm1")).sample_age_ms == 7, "the next call is answered by a connection without a past"


@pytest.mark.parametrize("form", ["application/json", "text/html"])
async def test_a_reply_in_another_form_than_protobuf_is_no_answer(proxy: Proxy, sockets: Path, form: str) -> None:
    async def answer(request: Request) -> None:
        await request.answer(b'{"error": "no cards", "gpus": []}', form=form)

    async with raw_http_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1")
        told = "no cards" if form == "application/json" else "its reply is text/html, not protobuf"
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, f"guest vm1: {told}")


async def test_a_reply_of_the_greatest_length_is_taken_whole(proxy: Proxy, sockets: Path) -> None:
    # Containers with long names: what a guest may send of strings.
    reply = guest_api_pb2.ListContainersResponse(
        containers=[guest_api_pb2.Container(id=f"{number}", image="i" * 60_000) for number in range(17)]
    ).SerializeToString()
    assert 1_000_000 < len(reply) < REPLY_LIMIT_BYTES
    async with raw_http_guest(str(sockets / "g"), sends(CHUNKED_HEAD + chunked(reply, 4096))) as guest:
        proxy.add("vm1", guest.address)
        answer = await proxy.api.ListContainers(guest_api_pb2.Id(id="vm1"), timeout=10)
        assert answer.SerializeToString() == reply


async def test_the_rest_of_a_long_page_that_tells_an_error_is_not_read(proxy: Proxy, sockets: Path) -> None:
    async def hostile(request: Request) -> None:
        await request.answer(b"x" * 2**20, "500 Internal Server Error")

    async with raw_http_guest(str(sockets / "g"), hostile) as guest:
        proxy.add("vm1", guest.address)
        told = {(await proxy.failure("vm1")).code().name for _ in range(3)}
        assert told == {"UNKNOWN"}
        assert guest.connections == 3
