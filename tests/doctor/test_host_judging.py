"""What `vmm-proxy doctor` makes of certificates, modes and a kernel; real files, and a time that is passed in."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from guest_api import guest_api_pb2
from guest_transport.addresses import TcpAddress, UnixAddress, parse_address
from guest_transport.doctor.certificates import decode, read_certificates
from guest_transport.doctor.findings import Verdict
from guest_transport.doctor.tls_files import SOON_SECONDS, TlsFiles, judge_tls, read_tls
from guest_transport.doctor.tls_listener import examine_tls_listener
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.tls import ServerTls
from tests.descriptors import descriptors
from tests.doctor.reports import host_doctor, words
from tests.pins.test_guest_tls import OURS, Authorities, tls_guest
from tests.policy import certificates
from tests.proxy.raw_http_guest import always, raw_http_guest
from vmm_proxy.config import ProxyConfig
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.doctor import access, directory, reach, writing
from vmm_proxy.doctor.guests import ask_guest, judge_guest
from vmm_proxy.doctor.known_guests import FoundReading
from vmm_proxy.doctor.listeners import PROXY

# Each test starts several processes, and a machine with other work may be slow.
pytestmark = pytest.mark.timeout(300)

DAY = 24 * 3600.0


def test_a_certificate_reads_as_a_library_made_for_it_reads_it(tmp_path: Path) -> None:
    chain, _ = certificates.write(tmp_path, "a", trustme.CA(), "proxy.example", "10.0.0.7", "fd00::1", "ops@example.org")
    (found,) = read_certificates(chain)
    oracle = x509.load_pem_x509_certificate(chain.read_bytes())
    assert found.valid_from == oracle.not_valid_before_utc.timestamp()
    assert found.valid_until == oracle.not_valid_after_utc.timestamp()
    assert found.der == ssl.PEM_cert_to_DER_cert(chain.read_text())
    assert sorted(found.names) == ["dns:proxy.example", "email:ops@example.org", "ip:10.0.0.7", "ip:FD00:0:0:0:0:0:0:1"]


def test_what_is_no_certificate_is_refused_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
    assert descriptors() <= before


def test_a_file_of_certificates_without_an_end_takes_time_in_its_length_only(tmp_path: Path) -> None:
    chain, _ = certificates.write(tmp_path, "a", trustme.CA(), "proxy.example")
    begins = b"-----BEGIN CERTIFICATE-----\n" * 140_000
    (tmp_path / "many.pem").write_bytes(begins + chain.read_bytes() + begins)
    started = time.monotonic()
    assert [found.names for found in read_certificates(tmp_path / "many.pem")] == [("dns:proxy.example",)]
    # Looking for each end through the whole file takes an hour.
    assert time.monotonic() - started < 60


class Files:
    """A server's certificate, key and authority in `folder`."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.authority = trustme.CA()
        self.chain, self.key = certificates.write(folder, "server", self.authority, *names)
        self.key.chmod(0o640)
        self.ca = certificates.write_authority(folder, "ca", self.authority)

    @property
    def files(self) -> TlsFiles:
        return TlsFiles("tls", self.chain, self.key, self.ca, serves=True)


@pytest.fixture
def served(tmp_path: Path) -> Files:
    return Files(tmp_path, "localhost")


def test_files_that_fit_are_right_and_say_whom_they_name_and_until_when(served: Files) -> None:
    seen = words(judge_tls(read_tls(served.files), time.time()), Verdict.OK)
    assert "dns:localhost" in seen
    assert "until 3000-01-01" in seen
    assert "1 authority in" in seen


def test_the_end_of_a_certificate_is_told_two_weeks_before_and_wrong_after(served: Files) -> None:
    reading = read_tls(served.files)
    end = reading.chain[0].valid_until
    assert "expires on" in words(judge_tls(reading, end - SOON_SECONDS + 60)[:1], Verdict.NOTE)
    assert "expired on" in words(judge_tls(reading, end + DAY)[:1], Verdict.WRONG)
    assert "not valid before" in words(judge_tls(reading, reading.chain[0].valid_from - DAY)[:1], Verdict.WRONG)


def test_one_authority_that_has_ended_among_others_is_a_note_and_all_of_them_are_wrong(served: Files) -> None:
    reading = read_tls(TlsFiles("guest_tls", None, None, served.ca))
    end = reading.authorities[0].valid_until
    assert "expired" in words(judge_tls(reading, end + DAY), Verdict.WRONG)


def test_a_key_that_others_may_use_and_one_that_does_not_fit_are_wrong(served: Files, tmp_path: Path) -> None:
    served.key.chmod(0o644)
    assert "others may use the key" in words(judge_tls(read_tls(served.files), time.time()), Verdict.WRONG)
    _, other = certificates.write(tmp_path, "other", trustme.CA(), "x")
    other.chmod(0o600)
    misfit = TlsFiles("tls", served.chain, other, served.ca, serves=True)
    assert "no certificate that fits the key" in words(judge_tls(read_tls(misfit), time.time()), Verdict.WRONG)
    absent = TlsFiles("tls", served.chain, tmp_path / "absent", None, serves=True)
    assert "cannot be read" in words(judge_tls(read_tls(absent), time.time()), Verdict.WRONG)


def test_a_listener_that_the_certificate_does_not_name_is_a_note(served: Files) -> None:
    reading = read_tls(served.files)
    assert "does not name proxy.example" in words(judge_tls(reading, time.time(), ["proxy.example"]), Verdict.NOTE)
    assert words(judge_tls(reading, time.time(), ["LOCALHOST"]), Verdict.OK)


async def test_a_tls_listener_shows_the_certificate_of_the_file_until_the_file_is_replaced(served: Files, tmp_path: Path) -> None:
    server = GrpcServer([], tls=ServerTls(served.chain, served.key, served.ca))
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        (address,) = server.addresses
        config = tmp_path / "proxy.toml"
        config.write_text(
            f'[grpc]\nlisten = ["{address}"]\n[http]\nlisten = "off"\n'
            f'[tls]\ncertificate = "{served.chain}"\nkey = "{served.key}"\nclient_authorities = "{served.ca}"\n'
        )
        report = await host_doctor(config)
        assert "shows the certificate of tls.certificate" in report.only("grpc")["seen"]
        assert "127.0.0.1" in report.only("tls")["seen"], "a note: the certificate names localhost"
        assert report.only("tls")["verdict"] == "note"
        assert "none has a role" in report.only("access")["seen"]
        assert isinstance(address, TcpAddress)
        another, _ = certificates.write(tmp_path, "another", served.authority, "localhost")
        (found,) = await examine_tls_listener(address, another, PROXY)
        assert (found.verdict, "another certificate" in found.seen) == (Verdict.WRONG, True)
    finally:
        await server.stop()


async def test_a_plain_server_where_tls_should_be_is_wrong(served: Files) -> None:
    server = GrpcServer([])
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        (address,) = server.addresses
        assert isinstance(address, TcpAddress)
        (found,) = await examine_tls_listener(address, served.chain, PROXY)
    finally:
        await server.stop()
    assert (found.verdict, "no TLS" in found.seen) == (Verdict.WRONG, True)


async def test_a_guest_is_asked_over_its_own_tls_and_one_with_a_certificate_of_another_name_is_wrong(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path)
    async with tls_guest(authorities, "guest.example") as (_, address):
        entry = GuestEntry("vm1", parse_address(address), tls=authorities.proxy("guest.example"))
        found = judge_guest(await ask_guest(entry, None))
        assert (found.verdict, OURS.hex() in found.seen) == (Verdict.OK, True)
        entry = GuestEntry("vm1", parse_address(address), tls=authorities.proxy("other.example"))
        assert judge_guest(await ask_guest(entry, None)).verdict is Verdict.WRONG


async def test_a_guest_whose_tls_files_are_refused_is_not_asked_in_the_clear() -> None:
    entry = GuestEntry("vm1", parse_address("192.0.2.1:8000"))
    found = judge_guest(await ask_guest(entry, None, "guest_tls: no such file"))
    assert (found.verdict, "not asked" in found.seen) == (Verdict.WRONG, True)


@pytest.mark.parametrize(
    ("vhost", "loopback", "cids", "wrong"),
    [
        (True, False, {3}, []),
        (False, False, {3}, ["vhost_vsock"]),
        (False, True, {1}, []),
        (True, False, {1}, ["vsock_loopback"]),
        (False, False, {1, 3}, ["vhost_vsock", "vsock_loopback"]),
        (False, False, set(), ["vhost_vsock"]),
    ],
)
def test_the_kernel_needs_vhost_for_vms_and_loopback_for_itself(
    vhost: bool, loopback: bool, cids: set[int], wrong: list[str]
) -> None:
    found = reach.judge_vsock(reach.VsockReading(None, vhost, loopback), cids)
    assert [each.seen.split()[0] for each in found if each.verdict is Verdict.WRONG] == wrong
    assert wrong or found[0].verdict is Verdict.OK


def test_a_kernel_without_vsock_is_wrong_and_parts_that_are_built_in_count(tmp_path: Path) -> None:
    refused = reach.VsockReading(OSError(97, "Address family not supported by protocol"), has_vhost=False, has_loopback=False)
    assert "no vsock" in words(reach.judge_vsock(refused, {3}), Verdict.WRONG)
    assert not reach.read_vsock(tmp_path, tmp_path).has_vhost
    (tmp_path / "vhost-vsock").touch()
    assert reach.read_vsock(tmp_path, tmp_path / "sys").has_vhost


def test_a_guests_socket_that_this_user_may_not_open_names_the_group(tmp_path: Path) -> None:
    denied = reach.judge_guest_socket("vm1", tmp_path / "v", PermissionError(13, "Permission denied"), usable=False)
    assert "may not look there" in words(denied, Verdict.WRONG)
    assert "SupplementaryGroups" in denied[0].advice


def test_domains_that_are_refused_are_wrong() -> None:
    found = directory.judge_libvirt(FoundReading(2, refused=("domain x: CID 2 is no guest's",)))
    assert [each.verdict for each in found] == [Verdict.WRONG, Verdict.OK]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_what_cannot_be_written_is_judged_for_the_effective_user(sockets: Path) -> None:
    sockets.chmod(0o755)
    log = sockets / "audit.jsonl"
    log.touch(0o640)
    assert writing.judge_audit(writing.read_writable(log)).verdict is Verdict.OK
    os.seteuid(65534)
    try:
        audit, state = writing.read_writable(log), writing.read_writable(sockets / "registered.json")
        found = [writing.judge_audit(audit), writing.judge_audit(state), writing.judge_state(state)]
    finally:
        os.seteuid(0)
    assert [each.verdict for each in found] == [Verdict.WRONG] * 3
    assert "every Shutdown is refused" in found[0].seen


def test_listeners_beyond_this_machine_that_let_nobody_do_anything_are_a_note() -> None:
    (found,) = access.judge_effect(ProxyConfig(), tokens=0, beyond_loopback=True)
    assert found.verdict is Verdict.NOTE
    assert access.judge_effect(ProxyConfig(), tokens=1, beyond_loopback=True) == []


async def test_a_guest_with_dstacks_agent_is_asked_in_http_and_named_as_one(tmp_path: Path) -> None:
    info = guest_api_pb2.GuestInfo(version="0.5.4", instance_id=b"\x02").SerializeToString()
    async with raw_http_guest(str(tmp_path / "g"), always({"Info": info, "GpuInfo": b""})) as guest:
        entry = GuestEntry("vm1", UnixAddress(guest.path), dstack=True)
        found = judge_guest(await ask_guest(entry, None))
        assert (found.verdict, found.seen) == (Verdict.OK, f"guest vm1: dstack 0.5.4 at dstack+unix:{guest.path}, 02")
        found = judge_guest(await ask_guest(replace(entry, instance_id=b"\x03"), None))
        assert (found.verdict, f"another VM answers at dstack+unix:{guest.path}" in found.seen) == (Verdict.WRONG, True)
        guest.behaviour = always({})
        found = judge_guest(await ask_guest(entry, None))
        assert (found.verdict, "does dstack's own agent answer there" in str(found)) == (Verdict.WRONG, True)


async def test_a_guest_with_dstacks_agent_is_not_asked_where_tls_is_meant_for_it(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path)
    entry = GuestEntry("vm1", parse_address("192.0.2.1:8000"), dstack=True)
    found = judge_guest(await ask_guest(entry, authorities.proxy("guest.example")))
    assert found.verdict is Verdict.WRONG
    assert "not asked: [guest_tls] is for its address" in found.seen
