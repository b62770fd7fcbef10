"""A TLS listener, asked for its certificate only: the doctor has none to show, and no role.

Whether it is the certificate of the file tells whether a renewal was taken. Rejected: verifying it (what a caller believes is the caller's
configuration, not the server's).
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from guest_transport.addresses import TcpAddress
from guest_transport.doctor.certificates import read_certificates
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, ok, wrong
from guest_transport.doctor.listeners import KNOCK_SECONDS, Served, holders_of, judge_refusal, judge_stranger, knock
from guest_transport.errors import SettingsError


async def examine_tls_listener(address: TcpAddress, certificate: Path, served: Served) -> list[Finding]:
    """Whether TLS is spoken there, with the certificate of the file."""
    refusal = await knock(address)
    if refusal is not None:
        return [judge_refusal(address, refusal, served.start_it)]
    try:
        shown = await in_thread(lambda: shown_certificate(address))
    except OSError as error:
        reason = f"no TLS: {error.strerror or error}"
        return [judge_stranger(str(address), await holders_of(address), reason, served.what)]
    return [judge_shown(address, shown, await in_thread(lambda: _in_file(certificate)), await holders_of(address), served.what)]


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


def judge_shown(address: TcpAddress, shown: bytes | None, in_file: bytes, holders: str, what: str) -> Finding:
    """The file's certificate, another one, or something that speaks no HTTP/2."""
    if shown is None:
        return judge_stranger(str(address), holders, "TLS without HTTP/2", what)
    if shown == in_file:
        return ok(f"{address}: held by {holders or 'somebody'}, shows the certificate of tls.certificate")
    return wrong(
        f"{address}: held by {holders or 'somebody'}, shows another certificate than tls.certificate holds",
        f"if it is the {what}, the new files were not taken: its log says why (see tls); if not, stop that program",
    )
