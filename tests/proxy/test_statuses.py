"""The status table of the contract, row by row, against guests that answer by hand-made HTTP/2."""

from __future__ import annotations

import asyncio
import gzip
import socket
from pathlib import Path

import grpc
import psutil
import pytest
from h2.errors import ErrorCodes

from guest_api import guest_api_pb2
from tests.proxy.raw_guest import Behaviour, Stream, frame, raw_guest
from tests.proxy.running import METHODS, Proxy
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outcome import GPU_INFO
from vmm_proxy.upstream.reachability import ReachabilityState

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def failure_of(proxy: Proxy, sockets: Path, behaviour: Behaviour, method: str = "GpuInfo") -> grpc.aio.AioRpcError:
    async with raw_guest(str(sockets / "bad"), behaviour) as guest, raw_guest(str(sockets / "good"), no_gpu) as healthy:
        proxy.add("bad", guest.address)
        proxy.add("good", healthy.address)
        error = await proxy.failure("bad", method, timeout=8)
        assert await proxy.gpu_info("good") == guest_api_pb2.GpuInfoResponse()
    assert str(sockets) not in (error.details() or ""), "a host path reached the caller"
    assert "\n" not in (error.details() or "")
    return error


@pytest.mark.parametrize("guest_id", ["", "../../etc/x", "/tmp/a", "a/b", "x" * 129, "a b", "vm\n1", "vm1,vm2", "ä", ".", ".."])
@pytest.mark.parametrize("method", METHODS)
async def test_an_id_that_breaks_the_rule_is_an_invalid_argument_and_is_not_repeated_back(
    proxy: Proxy, guest_id: str, method: str
) -> None:
    error = await proxy.failure(guest_id, method)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "id: must be 1 to 128 characters of [A-Za-z0-9._:-], and neither . nor .."


@pytest.mark.parametrize("guest_id", ["a", "x" * 128, "3b1f-4c.._:", "...", "0"])
async def test_every_id_that_keeps_the_rule_is_looked_up(proxy: Proxy, guest_id: str) -> None:
    error = await proxy.failure(guest_id)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert guest_id in (error.details() or "")


@pytest.mark.parametrize("request_bytes", [b"\x0a\x02\xff\xfe", b"\x0a\xff", b"\x0b"])
async def test_a_request_that_does_not_decode_is_an_invalid_argument(proxy: Proxy, request_bytes: bytes) -> None:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary("/guest_api.ProxiedGuestApi/GpuInfo")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request_bytes, timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stopped_guest_fails_at_once_and_is_not_dialled(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address, running=False)
        error = await proxy.failure("vm1", timeout=None)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "guest vm1: stopped"
        assert guest.connections == 0


@pytest.mark.parametrize("address", ["unix:{}/nobody", "hvsock:{}/nobody:8000"])
async def test_a_guest_without_a_socket_is_unavailable_and_its_path_stays_ours(proxy: Proxy, sockets: Path, address: str) -> None:
    proxy.add("vm1", address.format(sockets))
    error = await proxy.failure("vm1", timeout=None)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "guest vm1: unreachable: its socket does not exist"


async def test_a_guest_that_refuses_connections_is_unavailable(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence):
        pass
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    proxy.add("vm1", f"127.0.0.1:{port}")
    error = await proxy.failure("vm1", timeout=None)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "guest vm1: unreachable: connection refused"


async def test_a_guest_that_closes_during_the_call_is_unavailable(proxy: Proxy, sockets: Path) -> None:
    async def close(stream: Stream) -> None:
        stream.connection.writer.close()

    error = await failure_of(proxy, sockets, close)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "guest bad: the connection was lost during the call"


async def test_a_silent_guest_ends_at_the_deadline_of_the_caller(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", timeout=0.5)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        deadline = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(CallError, match=r"^guest vm1: no answer within 0\.[0-9]{2} s$"):
            await proxy.pool.upstream("vm1").call(GPU_INFO, (), deadline)


async def test_a_guest_that_accepts_and_never_speaks_is_not_taken_for_one_that_answers(proxy: Proxy, sockets: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(sockets / "g"))
        deaf.listen()
        proxy.add("vm1", f"unix:{sockets / 'g'}")
        deadline = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(CallError, match=r"^guest vm1: no answer within 0\.[0-9]{2} s$"):
            await proxy.pool.upstream("vm1").call(GPU_INFO, (), deadline)
        assert proxy.pool.reachability("vm1").state is ReachabilityState.UNREACHABLE
        assert proxy.pool.reachability("vm1").answered_at is None


NO_REPLIES = {
    "unknown frame flag": frame(b"abc", flag=0xAF),
    "status 0 without a message": b"",
    "short frame": frame(b"abc", length=10),
    "short frame header": b"\0\0",
    "a cut-off field": frame(b"\x0a\x05a"),
    "deep nesting": frame(b"\x0b" * 200 + b"\x0c" * 200),
}


@pytest.mark.parametrize("kind", NO_REPLIES)
@pytest.mark.parametrize("method", METHODS)
async def test_a_reply_that_is_no_reply_is_internal_and_names_the_guest(
    proxy: Proxy, sockets: Path, kind: str, method: str
) -> None:
    async def answer(stream: Stream) -> None:
        await stream.head()
        await stream.data(NO_REPLIES[kind])
        await stream.trailers()

    error = await failure_of(proxy, sockets, answer, method)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert (error.details() or "").startswith("guest bad: its reply ")


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("GpuInfo", b"\x12\x02\xff\xfe"),
        ("GpuInfo", b"\x0a\x04\x12\x02\xff\xfe"),
        ("Info", b"\x0a\x02\xff\xfe"),
        ("SysInfo", b"\x0a\x02\xff\xfe"),
        ("NetworkInfo", b"\x0a\x02\xff\xfe"),
        ("ListContainers", b"\x0a\x04\x0a\x02\xff\xfe"),
    ],
)
async def test_bad_utf8_in_any_reply_is_internal(proxy: Proxy, sockets: Path, method: str, reply: bytes) -> None:
    error = await failure_of(proxy, sockets, lambda stream: stream.answer(reply), method)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "does not decode" in (error.details() or "")


async def test_a_reply_without_trailers_is_internal(proxy: Proxy, sockets: Path) -> None:
    async def cut_off(stream: Stream) -> None:
        await stream.head()
        await stream.data(frame(b""), end=True)

    error = await failure_of(proxy, sockets, cut_off)
    assert error.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("code", CODES)
async def test_a_status_of_the_guest_is_kept_with_its_text_and_allowed_trailers_only(
    proxy: Proxy, sockets: Path, code: grpc.StatusCode
) -> None:
    async def fail(stream: Stream) -> None:
        extra = [("x-request-id", "r7"), ("set-cookie", "a=b"), ("x-bin", "AAAA"), ("grpc-status-details-bin", "CAUSAA==")]
        await stream.fail(str(code.value[0]), "out of cards", extra)

    error = await failure_of(proxy, sockets, fail)
    # CANCELLED would tell the caller that it had cancelled the call itself.
    assert error.code() is (grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.CANCELLED else code)
    assert error.details() == "guest bad: out of cards"
    assert list(error.trailing_metadata()) == [("x-request-id", "r7")]


async def test_a_guests_text_loses_control_characters_and_length(proxy: Proxy, sockets: Path) -> None:
    async def fail(stream: Stream) -> None:
        await stream.fail("5", "%1b[2J%0d%0aset-cookie: a=b%e2%80%ae%00" + "%c3%a4" * 600)

    error = await failure_of(proxy, sockets, fail)
    details = error.details() or ""
    assert details.isprintable()
    assert "set-cookie: a=b" in details
    assert len(details.removeprefix("guest bad: ").encode()) <= 1024


@pytest.mark.parametrize("code", list(ErrorCodes), ids=lambda code: code.name)
async def test_a_call_that_the_guest_resets_is_unavailable_whatever_the_reset_says(
    proxy: Proxy, sockets: Path, code: ErrorCodes
) -> None:
    error = await failure_of(proxy, sockets, lambda stream: stream.break_off(code))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == f"guest bad: it broke off the call (HTTP/2 error {int(code)})"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("301", grpc.StatusCode.INTERNAL),
        ("400", grpc.StatusCode.INTERNAL),
        ("401", grpc.StatusCode.INTERNAL),
        ("403", grpc.StatusCode.INTERNAL),
        ("404", grpc.StatusCode.INTERNAL),
        ("429", grpc.StatusCode.UNAVAILABLE),
        ("500", grpc.StatusCode.INTERNAL),
        ("503", grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_guest_that_answers_with_plain_http_gives_no_status_of_its_own(
    proxy: Proxy, sockets: Path, status: str, code: grpc.StatusCode
) -> None:
    async def page(stream: Stream) -> None:
        await stream.send_headers([(":status", status), ("content-type", "text/html")])
        await stream.data(b"<h1>no</h1>", end=True)

    error = await failure_of(proxy, sockets, page)
    assert error.code() is code
    assert f"HTTP status {status}" in (error.details() or "")


@pytest.mark.parametrize("forged", ["99", "abc", "-1", ""])
async def test_a_status_that_is_none_never_becomes_success(proxy: Proxy, sockets: Path, forged: str) -> None:
    error = await failure_of(proxy, sockets, lambda stream: stream.fail(forged, "x"))
    assert error.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


async def test_garbage_after_the_handshake_is_internal(proxy: Proxy, sockets: Path) -> None:
    async def garbage(stream: Stream) -> None:
        stream.connection.writer.write(b"\xff" * 100)

    error = await failure_of(proxy, sockets, garbage)
    assert error.code() is grpc.StatusCode.INTERNAL


async def test_a_gzip_bomb_is_refused_and_costs_no_memory(proxy: Proxy, sockets: Path) -> None:
    bomb = frame(gzip.compress(bytes(200 * 2**20)), flag=1)

    async def explode(stream: Stream) -> None:
        await stream.head([("grpc-encoding", "gzip")])
        await stream.data(bomb)
        await stream.trailers()

    before = psutil.Process().memory_info().rss
    error = await failure_of(proxy, sockets, explode)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "guest bad: its reply is over the size limit"
    assert psutil.Process().memory_info().rss - before < 20e6


async def test_a_reply_over_one_mebibyte_is_refused(proxy: Proxy, sockets: Path) -> None:
    big = frame(bytes(2**20 + 1))

    async def answer(stream: Stream) -> None:
        await stream.head()
        await stream.data(big)
        await stream.trailers()

    error = await failure_of(proxy, sockets, answer)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_trailers_without_end_are_refused(proxy: Proxy, sockets: Path) -> None:
    error = await failure_of(proxy, sockets, lambda stream: stream.fail("5", "x", [("x", "y" * 60_000)]))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
