"""`[tls]`, `[guest_tls]` and a guest's own `tls` table: certificates as files, tried when the configuration is read.

A start with files that are missing or do not fit together is refused; later changes of the files are taken as they come.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from guest_transport.errors import SettingsError
from guest_transport.tls import ClientTls, ServerTls
from vmm_proxy.guest_tls import GuestTls


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls]`: what the TCP listeners show, and whom they believe."""

    # PEM file with the certificate that callers are shown, and those between it and its authority.
    certificate: str
    # PEM file with its key.
    key: str
    # PEM file. With it a client must show a certificate of these authorities (mutual TLS).
    client_authorities: str | None = None


class GuestTlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[guest_tls]`, for guests at HOST:PORT beyond loopback, and `tls` of one guest."""

    # PEM file with the authorities that a guest's certificate is checked by; the system's without it.
    authorities: str | None = None
    # PEM file with the certificate that the proxy shows when the guest asks (mutual TLS).
    certificate: str | None = None
    # PEM file with its key.
    key: str | None = None
    # What the guest's certificate must say; without it the host of its address.
    name: str = ""


def server_tls(settings: TlsSettings | None, where: str) -> ServerTls | None:
    """The TLS of the listeners; raises SettingsError. Reads the files."""
    if settings is None:
        return None
    tls = ServerTls(
        _file(settings.certificate, f"{where}: tls.certificate"),
        _file(settings.key, f"{where}: tls.key"),
        _optional(settings.client_authorities, f"{where}: tls.client_authorities"),
    )
    try:
        tls.credentials()
    except SettingsError as error:
        raise SettingsError(f"{where}: tls: {error}") from error
    return tls


def guest_tls(settings: GuestTlsSettings | None, where: str) -> GuestTls | None:
    """The TLS towards a guest; raises SettingsError with `where` in front. Reads the files."""
    if settings is None:
        return None
    if settings.name and not (settings.name.isascii() and settings.name.isprintable() and len(settings.name) <= 253):
        raise SettingsError(f"{where}.name: must be a host name or an IP address")
    files = ClientTls(
        _optional(settings.authorities, f"{where}.authorities"),
        _optional(settings.certificate, f"{where}.certificate"),
        _optional(settings.key, f"{where}.key"),
    )
    try:
        files.credentials()
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    return GuestTls(files, settings.name)


def _optional(text: str | None, where: str) -> Path | None:
    return None if text is None else _file(text, where)


def _file(text: str, where: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{where}: must be an absolute path, not {text[:120]!a}")
    return path
