"""Certificates and keys: do they fit together, who may read the key, when do they end, and whom do they name?

Of a key nothing but its file's mode is looked at beyond what gRPC itself does with it; nothing that it holds is ever shown.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from guest_transport.addresses import TcpAddress
from guest_transport.doctor.certificates import Certificate, read_certificates
from guest_transport.doctor.files import FileFacts, read_facts
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.errors import SettingsError
from guest_transport.tls import ClientTls, ServerTls
from guest_transport.tls_settings import TlsSettings

# A renewal by hand takes a working week to be noticed and done; automatic ones (30 days before the end) are late by then.
SOON_SECONDS = 14 * 24 * 3600
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 -- names of "all addresses", nothing is bound
_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one table of the configuration; `role` names it in messages."""

    role: str
    certificate: Path | None
    key: Path | None
    authorities: Path | None
    serves: bool = False


@dataclass(frozen=True, slots=True)
class TlsReading:
    """`misfit`: why gRPC would not take them, empty when it would. Lists are empty for files that are not configured, or not readable."""

    files: TlsFiles
    misfit: str
    key: FileFacts | OSError | None
    chain: tuple[Certificate, ...]
    authorities: tuple[Certificate, ...]


def server_files(settings: TlsSettings) -> TlsFiles:
    """The files of `[tls]`."""
    authorities = None if settings.client_authorities is None else Path(settings.client_authorities)
    return TlsFiles("tls", Path(settings.certificate), Path(settings.key), authorities, serves=True)


def hosts_to_name(addresses: Iterable[object]) -> list[str]:
    """What a certificate should name of the addresses that are listened on."""
    return [address.host for address in addresses if isinstance(address, TcpAddress) and address.host not in _WILDCARDS]


def read_tls(files: TlsFiles) -> TlsReading:
    """The files as they are now, tried as the proxy tries them. Blocks."""
    misfit = ""
    try:
        if files.serves and files.certificate is not None and files.key is not None:
            ServerTls(files.certificate, files.key, files.authorities).credentials()
        else:
            ClientTls(files.authorities, files.certificate, files.key).credentials()
    except SettingsError as error:
        misfit = str(error)
    key = None if files.key is None else read_facts(files.key)
    return TlsReading(files, misfit, key, _certificates(files.certificate), _certificates(files.authorities))


def _certificates(path: Path | None) -> tuple[Certificate, ...]:
    if path is None:
        return ()
    try:
        return tuple(read_certificates(path))
    except (SettingsError, ValueError):
        # Why it cannot be read is told by `misfit`, in the product's own words.
        return ()


def judge_tls(reading: TlsReading, now: float, hosts: Sequence[str] = ()) -> list[Finding]:
    """`now`: epoch seconds; `hosts`: what a server's certificate should name."""
    files, found = reading.files, list[Finding]()
    if reading.misfit:
        found.append(
            wrong(f"{files.role}: {reading.misfit}", "put the right files there; renewed ones are taken without a restart")
        )
    if isinstance(reading.key, FileFacts) and reading.key.mode & (stat.S_IRWXO | stat.S_IWGRP):
        found.append(
            wrong(
                f"{files.role}: others may use the key {reading.key.path}: {reading.key.owners}", f"chmod 0640 {reading.key.path}"
            )
        )
    for certificate in reading.chain:
        found += judge_dates(f"{files.role}: {files.certificate}", certificate, now)
    found += _judge_authorities(reading, now)
    if files.serves and reading.chain:
        found += _judge_names(reading, hosts)
    return found or [ok(f"{files.role}: {_summary(reading)}")]


def judge_dates(where: str, certificate: Certificate, now: float) -> list[Finding]:
    """Valid now and for a while."""
    until = _day(certificate.valid_until)
    name = f"{where} ({certificate.subject})" if certificate.subject else where
    if now >= certificate.valid_until:
        return [wrong(f"{name}: expired on {until}", "renew it; the new one is taken without a restart")]
    if now < certificate.valid_from:
        return [
            wrong(
                f"{name}: not valid before {_day(certificate.valid_from)}",
                "see clock; or it was made on a machine whose clock is ahead",
            )
        ]
    if certificate.valid_until - now < SOON_SECONDS:
        return [note(f"{name}: expires on {until}", "renew it; the new one is taken without a restart")]
    return []


def _judge_authorities(reading: TlsReading, now: float) -> list[Finding]:
    """One authority of several that has ended is an old one that was kept; when all have, nobody is believed any more."""
    dated = [judge_dates(f"{reading.files.role}: {reading.files.authorities}", each, now) for each in reading.authorities]
    if any(now < each.valid_until for each in reading.authorities):
        return [note(finding.seen, finding.advice) for found in dated for finding in found]
    return [finding for found in dated for finding in found]


def _judge_names(reading: TlsReading, hosts: Sequence[str]) -> list[Finding]:
    names = {name.partition(":")[2].lower() for name in reading.chain[0].names}
    return [
        note(
            f"{reading.files.role}: {reading.files.certificate} does not name {host}, where the server listens",
            "whoever dials that name refuses the certificate; issue it with this name too",
        )
        for host in hosts
        if host.lower() not in names and not any(name.startswith("*.") and host.lower().endswith(name[1:]) for name in names)
    ]


def _summary(reading: TlsReading) -> str:
    parts = []
    if reading.chain:
        names = reading.chain[0].names
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        named = f"{', '.join(names[:_NAMES_SHOWN]) or 'no name'}{more}"
        parts.append(f"{reading.files.certificate} for {named}, until {_day(reading.chain[0].valid_until)}")
    if reading.files.authorities is not None:
        count = len(reading.authorities)
        parts.append(f"{count} {'authority' if count == 1 else 'authorities'} in {reading.files.authorities}")
    return "; ".join(parts) or "the system's authorities"


def _day(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%d")
