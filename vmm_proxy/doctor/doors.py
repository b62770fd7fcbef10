"""Where the proxy is to be reached: its gRPC addresses and its pages.

Health is asked, because it is open to everybody: the doctor has no role of its own. A TLS listener is asked for its certificate only, since
the doctor has none to show; whether it is the one in the file tells whether a renewal was taken.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.doctor.listeners import (
    ANSWER_SECONDS,
    KNOCK_SECONDS,
    Served,
    examine_listener,
    holders_of,
    judge_refusal,
    judge_stranger,
    knock,
)
from guest_transport.doctor.pages import examine_pages
from guest_transport.errors import SettingsError
from vmm_proxy.doctor.certificates import read_certificates
from vmm_proxy.doctor.machine import UNIT, Host
from vmm_proxy.http.settings import page_setup

_FLEET = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name


async def _who(channel: grpc.aio.Channel) -> str:
    request = health_pb2.HealthCheckRequest(service=_FLEET)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=ANSWER_SECONDS)
    serving = isinstance(answer, health_pb2.HealthCheckResponse) and answer.status == health_pb2.HealthCheckResponse.SERVING
    return "a proxy answers, serving" if serving else "a proxy answers, and is stopping"


PROXY = Served("proxy", UNIT, _who)


async def examine_grpc(host: Host) -> Sequence[Finding]:
    """Each address of grpc.listen."""
    found: list[Finding] = []
    asked = []
    for address in host.listen():
        match address:
            case SettingsError():
                found.append(wrong(str(address), "correct it; vmm-proxy check-config tries it again"))
            case TcpAddress() if host.config.tls is not None and address.port:
                asked.append(examine_tls_listener(address, Path(host.config.tls.certificate)))
            case TcpAddress() | UnixAddress():
                asked.append(examine_listener(address, PROXY))
            case _:
                found.append(note(f"{address}: not looked at: the proxy listens on unix:/path and HOST:PORT"))
    answers = await asyncio.gather(*asked)
    return [*(finding for each in answers for finding in each), *found]


async def examine_tls_listener(address: TcpAddress, certificate: Path) -> list[Finding]:
    """Whether TLS is spoken there, with the certificate of the file."""
    refusal = await knock(address)
    if refusal is not None:
        return [judge_refusal(address, refusal, PROXY.start_it)]
    try:
        shown = await in_thread(lambda: shown_certificate(address))
    except OSError as error:
        reason = f"no TLS: {error.strerror or error}"
        return [judge_stranger(str(address), await holders_of(address), reason, PROXY.what)]
    return [judge_shown(address, shown, await in_thread(lambda: _in_file(certificate)), await holders_of(address))]


def shown_certificate(address: TcpAddress) -> bytes | None:
    """The certificate that the listener shows, DER; None without HTTP/2. Raises OSError. Verifies nothing: nothing is sent. Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address.host, address.port), KNOCK_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=None) as secured,
    ):
        return secured.getpeercert(binary_form=True) if secured.selected_alpn_protocol() == "h2" else None


def _in_file(certificate: Path) -> bytes:
    try:
        chain = read_certificates(certificate)
    except (SettingsError, ValueError):
        return b""
    return chain[0].der if chain else b""


def judge_shown(address: TcpAddress, shown: bytes | None, in_file: bytes, holders: str) -> Finding:
    """The file's certificate, another one, or something that speaks no HTTP/2."""
    if shown is None:
        return judge_stranger(str(address), holders, "TLS without HTTP/2", PROXY.what)
    if shown == in_file:
        return ok(f"{address}: held by {holders or 'somebody'}, shows the certificate of tls.certificate")
    return wrong(
        f"{address}: held by {holders or 'somebody'}, shows another certificate than tls.certificate holds",
        "if it is the proxy, the new files were not taken: its log says why (see tls); if not, stop that program",
    )


async def examine_http(host: Host) -> Sequence[Finding]:
    """The pages."""
    try:
        setup = page_setup(host.config.http, host.config.metrics, flag=None, where=host.where)
    except SettingsError as error:
        return [wrong(str(error), "correct it; vmm-proxy check-config tries it again")]
    return await examine_pages(setup.listen, UNIT)
