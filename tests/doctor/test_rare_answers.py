"""Answers that the doctors give seldom: addresses that a side does not serve, ports nobody may look at, strangers that speak TLS."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from guest_service.config import Grpc, GuestConfig
from guest_service.doctor import cid, doors
from guest_service.doctor.machine import Guest
from guest_transport.addresses import HvsockAddress, TcpAddress, VsockAddress
from guest_transport.doctor.files import group_name, read_facts, user_name
from guest_transport.doctor.findings import Verdict
from guest_transport.doctor.holders import port_holders
from guest_transport.doctor.pages import examine_pages
from guest_transport.doctor.tls_listener import examine_tls_listener, judge_shown
from tests.doctor.places import HostPlace
from tests.doctor.reports import host_doctor

AT = VsockAddress(3, 8000)
NOBODY = 4_000_000_000


@pytest.mark.parametrize(
    ("number", "verdict", "words"),
    [
        (errno.EADDRINUSE, Verdict.OK, "vsock:3:8000"),
        (errno.EACCES, Verdict.NOTE, "may not find out"),
        (errno.EAFNOSUPPORT, Verdict.WRONG, "no vsock"),
        (errno.EADDRNOTAVAIL, Verdict.WRONG, os.strerror(errno.EADDRNOTAVAIL)),
    ],
)
def test_why_a_vsock_port_cannot_be_held_is_told_apart(number: int, verdict: Verdict, words: str) -> None:
    found = cid.judge_bind(AT, OSError(number, os.strerror(number)))
    assert (found.verdict, words in found.seen) == (verdict, True)


async def test_each_vsock_address_of_a_guest_is_looked_at_by_cid_and_left_out_by_grpc(tmp_path: Path) -> None:
    guest = Guest(GuestConfig(grpc=Grpc(listen=("vsock:any:8000", "vsock:77:8000"))), dev=tmp_path)
    found = await cid.examine_cid(guest)
    assert "/dev/vsock is not there" in found[0].seen
    assert [each.seen.partition(": ")[0] for each in found[1:]] == ["vsock:any:8000", "vsock:77:8000"]
    assert "not this machine's" in found[2].seen
    assert [each.seen for each in await doors.examine_grpc(guest)] == ["vsock addresses only: see cid"]


async def test_pages_have_no_other_door_than_tcp_and_unix_and_a_chosen_port_is_not_guessed() -> None:
    (found,) = await examine_pages(HvsockAddress("/run/x", 1), "vmm-proxy")
    assert (found.verdict, "HOST:PORT or unix:/path only" in found.seen) == (Verdict.WRONG, True)
    (found,) = await examine_pages(TcpAddress("127.0.0.1", 0), "vmm-proxy")
    assert found.verdict is Verdict.NOTE


async def test_pages_and_tls_where_nobody_listens_are_wrong_and_say_what_to_start() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = TcpAddress("127.0.0.1", bound.getsockname()[1])
        (page,) = await examine_pages(nobody, "vmm-proxy")
        (listener,) = await examine_tls_listener(nobody, Path("/none.pem"), doors.AGENT)
    assert (page.verdict, listener.verdict) == (Verdict.WRONG, Verdict.WRONG)
    assert "systemctl start vmm-proxy" in page.advice
    assert str(nobody) in listener.seen


def test_a_tls_server_without_http2_is_a_stranger_and_another_certificate_is_told() -> None:
    at = TcpAddress("127.0.0.1", 443)
    assert "TLS without HTTP/2" in judge_shown(at, None, b"mine", "nginx (pid 1)", "guest agent").seen
    assert "another certificate" in judge_shown(at, b"other", b"mine", "", "guest agent").seen
    assert judge_shown(at, b"mine", b"mine", "", "guest agent").verdict is Verdict.OK


def test_users_and_groups_without_a_name_are_their_numbers_and_an_impossible_path_a_reason(tmp_path: Path) -> None:
    assert (user_name(NOBODY), group_name(NOBODY)) == (str(NOBODY), str(NOBODY))
    assert isinstance(read_facts(tmp_path / "a\0b"), OSError)


def test_who_holds_a_port_is_named_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        assert f"(pid {os.getpid()})" in port_holders(held.getsockname()[1])
    assert port_holders(0) == ""


async def test_addresses_that_the_proxy_cannot_listen_on_are_each_a_line(sockets: Path) -> None:
    place = HostPlace(sockets)
    place.tables["grpc"] = f'listen = ["unix:{place.socket}", "vsock:any:9000", "nonsense"]'
    report = await host_doctor(place.write())
    assert any(each["verdict"] == "wrong" for each in report.of("grpc"))
