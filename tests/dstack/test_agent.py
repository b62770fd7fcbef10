"""The agent as dstack's VMM calls it: every documented form, raw callers that mean no good, and what stays gRPC's."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from tests.agent.agent import Agent, refused, running_agent
from tests.dstack.raw_http import Reply, ask, connected, request
from tests.eventually import eventually_here

CONFIG = """
[grpc]
listen = ["unix:{folder}/g.sock", "127.0.0.1:0"]
[http]
listen = "off"
[gpu]
simulate = "{rack}"
[containers]
socket = "off"
[power]
shutdown_command = ["touch", "{folder}/powered-off"]
[dstack]
enabled = {enabled}
"""
REPLIES: dict[str, type[Message]] = {
    "Info": guest_api_pb2.GuestInfo,
    "SysInfo": guest_api_pb2.SystemInfo,
    "GpuInfo": guest_api_pb2.GpuInfoResponse,
    "NetworkInfo": guest_api_pb2.NetworkInformation,
    "ListContainers": guest_api_pb2.ListContainersResponse,
}
WITHOUT_CARD: dict[str, Any] = {"gpus": [], "error": "", "cc_ready": None, "cc_enabled": None, "sample_age_ms": None}


class Doors:
    """An agent and its two addresses."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent = agent
        self.unix = f"unix:{folder}/g.sock"
        self.tcp = agent.log_line("listening on 127.0.0.1").rpartition(" ")[2]
        self.powered_off = folder / "powered-off"

    def over_grpc(self, method: str, address: str = "") -> Any:
        with grpc.insecure_channel(address or self.unix, options=[("grpc.default_authority", "localhost")]) as channel:
            return getattr(guest_api_pb2_grpc.GuestApiStub(channel), method)(empty_pb2.Empty(), timeout=20)


def _doors(folder: Path, rack: str = "none", *, enabled: str = "true") -> Iterator[Doors]:
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder, rack=rack, enabled=enabled))
    with running_agent("--config", str(config), ready="listening on 127.0.0.1") as agent:
        yield Doors(agent, folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="gs_") as made:
        yield Path(made)


@pytest.fixture
def own_doors(folder: Path) -> Iterator[Doors]:
    """Of an agent that the test may end."""
    yield from _doors(folder)


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with tempfile.TemporaryDirectory(prefix="gs_") as made:
        yield from _doors(Path(made))


def test_every_documented_form_has_the_answer_of_grpc(doors: Doors) -> None:
    info = doors.over_grpc("Info")
    for address in (doors.unix, doors.tcp):
        for target in ("/api/Info", "/api/GuestApi.Info"):
            got = [
                ask(address, "GET", target),
                ask(address, "POST", target, b"{}", content_type="application/json"),
                ask(address, "POST", f"{target}?json"),
                ask(address, "POST", target, b'{"verbose": true, "id": 7', content_type="application/json"),
            ]
            for reply in got:
                assert reply.status == 200
                assert reply.json()["version"] == info.version
                assert reply.json()["instance_id"] == info.instance_id.hex()
            for body in (b"", b"\xff\xff not protobuf"):
                reply = ask(address, "POST", target, body)
                assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")
                assert guest_api_pb2.GuestInfo.FromString(reply.body) == info


@pytest.mark.parametrize("method", REPLIES)
def test_each_method_answers_with_all_members_that_dstack_knows(doors: Doors, method: str) -> None:
    known = [field.name for field in REPLIES[method].DESCRIPTOR.fields if field.number < 1000]
    assert list(ask(doors.unix, "GET", f"/api/{method}").json()) == known
    every = [field.name for field in REPLIES[method].DESCRIPTOR.fields]
    assert list(ask(doors.unix, "GET", f"/api/{method}?fields=all").json()) == every


def test_a_guest_without_a_card_says_what_dstacks_agent_says(doors: Doors) -> None:
    assert ask(doors.tcp, "GET", "/api/GpuInfo").json() == WITHOUT_CARD
    assert ask(doors.tcp, "POST", "/api/GpuInfo").body == b""


def test_a_card_is_the_same_in_both_forms(folder: Path) -> None:
    with contextlib.contextmanager(_doors)(folder, "h200") as with_card:
        _same_in_both_forms(with_card)


def _same_in_both_forms(with_card: Doors) -> None:
    said = ask(with_card.unix, "GET", "/api/GpuInfo").json()
    told = guest_api_pb2.GpuInfoResponse.FromString(ask(with_card.unix, "POST", "/api/GpuInfo").body)
    assert [card["uuid"] for card in said["gpus"]] == [card.uuid for card in told.gpus]
    assert said["gpus"][0]["memory_total_bytes"] == told.gpus[0].memory_total_bytes > 2**32
    assert told.gpus[0].name, "protobuf has our own fields too"
    assert "name" not in said["gpus"][0]
    assert said["cc_enabled"] is True


@pytest.mark.parametrize(
    ("method", "target", "status", "words"),
    [
        ("GET", "/api/Nothing", 404, "no such method"),
        ("GET", "/api/", 404, "no such method"),
        ("GET", "/", 404, "no such method"),
        ("GET", "/metrics", 404, "no such method"),
        ("GET", "/api/ProxiedGuestApi.Info", 404, "no such method"),
        ("GET", "/api/Info/", 404, "no such method"),
        ("GET", "/api/Info%0d%0aX-Evil:%201", 404, "no such method"),
        ("GET", "/guest/Info", 404, "no such method"),
        ("PUT", "/api/Info?json", 405, "GET and POST only"),
        ("DELETE", "/api/Info?json", 405, "GET and POST only"),
        ("GET", "/api/Shutdown", 405, "POST only"),
        ("GET", "/api/Info?" + "&".join(f"a{n}=1" for n in range(40)), 400, "more than 16 members"),
    ],
)
def test_what_is_no_call_is_refused_in_words(doors: Doors, method: str, target: str, status: int, words: str) -> None:
    reply = ask(doors.tcp, method, target)
    assert reply.status == status
    assert list(reply.json()) == ["error"]
    assert words in reply.json()["error"]
    assert "x-evil" not in reply.headers


def test_an_error_in_protobuf_has_its_text_in_field_1(doors: Doors) -> None:
    reply = ask(doors.tcp, "POST", "/api/Nothing")
    assert (reply.status, reply.headers["content-type"]) == (404, "application/octet-stream")
    assert guest_api_pb2.Id.FromString(reply.body).id.startswith("no such method")


def test_shutdown_is_refused_over_tcp_and_to_get_and_runs_for_a_post_on_the_unix_socket(own_doors: Doors) -> None:
    reply = ask(own_doors.tcp, "POST", "/api/Shutdown?json", b"null")
    assert reply.status == 400
    assert "power.allow_shutdown" in reply.json()["error"]
    assert ask(own_doors.unix, "GET", "/api/Shutdown").status == 405
    assert not own_doors.powered_off.exists()
    assert ask(own_doors.unix, "POST", "/api/Shutdown?json").json() is None
    eventually_here(own_doors.powered_off.exists)
    assert f"Shutdown by unix uid {os.geteuid()}" in own_doors.agent.log_line("Shutdown by unix")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}]
)
def test_a_page_of_another_site_calls_nothing(doors: Doors, headers: dict[str, str]) -> None:
    for address in (doors.unix, doors.tcp):
        assert ask(address, "POST", "/api/Shutdown?json", b"", **headers).status == 403
        assert ask(address, "GET", "/api/Info", b"", **headers).status == 403
    assert not doors.powered_off.exists()


def test_a_name_that_is_not_this_machines_is_refused_over_tcp_and_unlooked_at_elsewhere(doors: Doors) -> None:
    evil = b"GET /api/Info HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    for address, status in ((doors.tcp, 421), (doors.unix, 200)):
        with connected(address) as connection:
            connection.send(evil)
            assert connection.reply().status == status


def test_calls_one_behind_the_other_on_one_connection_are_answered_in_their_order(doors: Doors) -> None:
    with connected(doors.unix) as connection:
        connection.send(
            request("GET", "/api/GpuInfo") + request("POST", "/api/Info?json", b"x" * 100) + request("GET", "/api/No")
        )
        replies = [connection.reply() for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 404]
        assert replies[0].json() == WITHOUT_CARD
        assert "version" in replies[1].json()
        connection.send(request("GET", "/api/GpuInfo"))
        assert connection.reply().json() == WITHOUT_CARD, "it stays open"


def test_a_body_in_chunks_is_read_and_one_with_two_lengths_ends_the_connection(doors: Doors) -> None:
    with connected(doors.unix) as connection:
        connection.send(b"POST /api/GpuInfo?json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n")
        assert connection.reply().json() == WITHOUT_CARD
    smuggled = b"0\r\n\r\n" + request("POST", "/api/Shutdown")
    with connected(doors.unix) as connection:
        connection.send(request("POST", "/api/GpuInfo", smuggled, Transfer_Encoding="chunked"))
        assert b"HTTP/1.1 400" in connection.rest()
    assert not doors.powered_off.exists()


def test_a_body_over_10_mib_is_413_and_one_of_10_mib_is_none_of_our_business(doors: Doors) -> None:
    most = 10 * 1024 * 1024
    assert ask(doors.unix, "POST", "/api/GpuInfo?json", b"x" * most).json() == WITHOUT_CARD
    with connected(doors.unix) as connection:
        connection.send(f"POST /api/GpuInfo?json HTTP/1.1\r\nHost: a\r\nContent-Length: {most + 1}\r\n\r\n".encode())
        sent = 0
        try:
            while sent <= most:
                sent += connection.socket.send(b"x" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert connection.reply().status == 413


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"PUT\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 20_000,
        b"POST /api/GpuInfo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/GpuInfo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    ],
    ids=["tls", "no target", "put", "nul", "long header", "many headers", "negative length", "huge chunk"],
)
def test_what_is_no_request_ends_its_own_connection_only(doors: Doors, nonsense: bytes) -> None:
    with connected(doors.tcp) as connection:
        try:
            connection.send(nonsense)
            answer = connection.rest()
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert ask(doors.tcp, "GET", "/api/GpuInfo").json() == WITHOUT_CARD
    assert doors.over_grpc("Info", doors.tcp).version


def test_grpc_that_comes_byte_by_byte_is_grpc_and_a_caller_who_says_nothing_holds_nobody_up(doors: Doors) -> None:
    with connected(doors.tcp) as silent, connected(doors.tcp) as slow:
        slow.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
            slow.send(bytes([byte]))
        slow.send(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        # A frame of settings (RFC 9113, 6.5).
        head = slow.socket.recv(9)
        assert head[3:4] == b"\x04"
        assert ask(doors.tcp, "GET", "/api/GpuInfo").json() == WITHOUT_CARD
        assert doors.over_grpc("Info", doors.tcp).version
        silent.send(request("GET", "/api/GpuInfo"))
        assert silent.reply().json() == WITHOUT_CARD


def test_without_the_switch_http_is_not_spoken(folder: Path) -> None:
    with contextlib.contextmanager(_doors)(folder, enabled="false") as doors, connected(doors.tcp) as connection:
        connection.send(request("GET", "/api/Info"))
        assert b"HTTP/1.1" not in connection.rest()


def test_it_is_not_together_with_tls(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[dstack]\nenabled = true\n[tls]\ncertificate = "/c"\nkey = "/k"\n')
    ended = refused("check-config", "--config", str(config))
    assert ended.returncode == 2
    assert "dstack.enabled: not together with [tls]" in ended.stderr


def test_calls_in_progress_are_answered_at_the_end(own_doors: Doors) -> None:
    with connected(own_doors.unix) as connection:
        connection.send(request("GET", "/api/GpuInfo"))
        reply: Reply = connection.reply()
        assert json.loads(reply.body) == WITHOUT_CARD
        assert own_doors.agent.end() == 0
        assert connection.rest() == b""
